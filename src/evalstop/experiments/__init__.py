"""Measurements over many runs: the paper's tables, real runs, the detection benchmark.

Belongs here: what to run, how often, and which figures make a table. Never here: a simulator, a
rule, a reader, or a figure that is not computed.
"""
