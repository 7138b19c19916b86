"""From ``[[notify]]`` in the settings to receivers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from evalstop.core.errors import InputError, ReadError
from evalstop.service.notify.mail import Mail
from evalstop.service.notify.notice import KINDS
from evalstop.service.notify.outbox import Receiver, Target
from evalstop.service.notify.webhook import Webhook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.config.settings import NotifySettings

__all__ = ["targets_of"]


def targets_of(settings: Sequence[NotifySettings]) -> list[Target]:
    """Return the receivers that the settings name.

    Raises:
        InputError: two have one name, or one has neither URL nor mail server.
        ReadError: a file with a secret cannot be read.
    """
    names = [each.name for each in settings]
    for name in names:
        if not name or "|" in name or names.count(name) > 1:
            message = f"[[notify]]: expected names that are unique and without |, got {name!r}"
            raise InputError(message)
    return [
        Target(
            name=each.name,
            receiver=_receiver(each),
            kinds=each.kinds or tuple(KINDS),
            tenants=each.tenants,
        )
        for each in settings
    ]


def _receiver(each: NotifySettings) -> Receiver:
    if bool(each.url) == bool(each.smtp_host):
        message = f"[[notify]] {each.name!r}: set either url, or smtp_host with sender"
        raise InputError(message)
    if each.url:
        return Webhook(each.url, secret=_secret(each.secret_file), form=each.form)
    return Mail(
        each.smtp_host,
        port=each.smtp_port,
        sender=each.sender,
        to=each.to,
        to_owner=each.to_owner,
        starttls=each.starttls,
        user=each.user,
        password=_secret(each.password_file),
    )


def _secret(file: str) -> str:
    if not file:
        return ""
    try:
        return Path(file).read_text().strip()
    except OSError as error:
        message = f"a secret is kept here, but it cannot be read: {error.strerror}"
        raise ReadError(file, message) from error
