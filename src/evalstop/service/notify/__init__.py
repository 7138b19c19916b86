"""Tell people what was decided, where they look: webhooks, Slack, mail (R31).

    notice.py    which facts are worth telling, and in which words; a pure fold of the log
    webhook.py   one POST, signed
    mail.py      one message by SMTP
    outbox.py    what waits to be told, kept beside the log until it is

Never here: a decision, or a reason to wait: a receiver that is down delays nothing and nobody.
"""

from evalstop.service.notify.mail import Mail
from evalstop.service.notify.notice import Notice, notices_of
from evalstop.service.notify.outbox import Outbox, Target
from evalstop.service.notify.targets import targets_of
from evalstop.service.notify.webhook import Webhook, signature, verify

__all__ = [
    "Mail",
    "Notice",
    "Outbox",
    "Target",
    "Webhook",
    "notices_of",
    "signature",
    "targets_of",
    "verify",
]
