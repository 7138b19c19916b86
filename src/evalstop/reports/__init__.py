"""Tables, figures and pages made of finished results.

Belongs here: anything that turns results into something to look at. Never here: a computation
of what is shown, a network address, or a script or style from elsewhere: pages work offline.
"""
