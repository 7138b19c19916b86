"""One file for each table or figure of the evaluation: its plan and what is shown of it.

Belongs here: choices of settings, and the exhibits made of their results. Never here: how runs
are spread, stored or drawn.
"""
