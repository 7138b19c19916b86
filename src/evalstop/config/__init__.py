"""Strings become objects here and nowhere else.

Belongs here: the spelling of rules, schedulers, scenarios and settings, and the tables that say
what names there are. Never here: behaviour.
"""
