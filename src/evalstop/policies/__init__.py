"""Policies that wrap schedulers: EvalStop, the rules it applies, and guards around it.

Belongs here: deciders that nest, and the early-stop rules that need more than a curve. Never
here: clocks, stores, backends, spelling of rules.
"""
