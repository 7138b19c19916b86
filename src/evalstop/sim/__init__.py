"""The driver that invents events: a heap of futures around the kernel.

Belongs here: the event queue, what executing an action costs, the record of a run. Never here:
deciding, randomness (workloads carry all of it), real time.
"""
