"""Where jobs run: one module a kind of cluster, independent of each other.

Belongs here: carrying out orders and reporting what is there. Never here: deciding who runs or
who stops, the log, HTTP, or one backend importing another.
"""
