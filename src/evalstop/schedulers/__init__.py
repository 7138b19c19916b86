"""Who gets GPUs next: base schedulers.

Belongs here: policies that place, preempt and resize. Never here: scores of evaluations
(LossAware reads losses), stopping, clocks, drivers.
"""
