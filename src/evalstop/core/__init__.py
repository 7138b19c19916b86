"""The deciding core: facts go in, intents come out.

Belongs here: events, actions, the picture of the cluster, one job's curve, the protocols of
detectors and policies, the kernel, the codec and the error tree. Never here: a clock, a random
number, a thread, a log, a disk, or any third party but msgspec.
"""
