"""The log and the documents beside it: in memory, in one SQLite file, or in PostgreSQL.

Belongs here: writing and reading entries durably, schemas and their migrations, the lease of the
one active controller. Never here: what an event means, or a decision.
"""
