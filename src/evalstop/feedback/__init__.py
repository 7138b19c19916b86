"""Scores that are pulled in: files that grow, trackers, and evalstop's own evaluator.

Belongs here: polling, and the bookkeeping of what was seen; each source is an
`evalstop.ports.FeedbackSource`. Never here: the reading of a format (``traces``), a verdict, or
anything that waits: a source that has nothing new returns at once.
"""
