"""The open detection benchmark: worlds, the limit that a Bayesian would reach, and the tables.

Belongs here: simulated curves with hidden labels, and what rules make of them. Never here: rules.
"""
