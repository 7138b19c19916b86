"""Judges of one curve: one rule a file, numpy at most.

Belongs here: detectors, the combinators that wrap them, and `Monitor`, which runs one at a
prompt. Never here: clusters, jobs, schedulers, files.
"""
