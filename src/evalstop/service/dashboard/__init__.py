"""The web console: pages rendered here, kept fresh by server-sent events and one small script.

Belongs here: sessions of people, pages, the pictures on them. Never here: a decision, a figure
that the platform does not give, or anything fetched from elsewhere: it works offline.
"""

from evalstop.service.dashboard.routes import add_dashboard

__all__ = ["add_dashboard"]
