"""What a run was worth: pure functions from columns of a finished run to figures.

Belongs here: detection against the hidden labels, system and quality figures, intervals. Never
here: anything that reads a file, draws without a generator, or knows who asked. Data come first,
everything else by keyword; each docstring gives the formula and what the empty case returns.
"""
