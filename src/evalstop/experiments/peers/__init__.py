"""Early stopping as other libraries ship it, driven on curves that evalstop's rules judge too.

Belongs here: one module a library, named for it, which feeds curves to the library's own decision
code through its public interface, without training anything; and the table of them. Never here:
a rule of ours, or a copy of one of theirs.
"""
