"""One message by SMTP, to a job's owner and to whoever else the operator named."""

from __future__ import annotations

import re
import smtplib
import ssl
from email.message import EmailMessage
from typing import TYPE_CHECKING

from evalstop.core.errors import EvalStopError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.service.notify.notice import Notice

__all__ = ["Mail"]

_ADDRESS = re.compile(r"[^@\s<>,;:\"()\[\]\\]{1,64}@[A-Za-z0-9.-]{1,255}")


class Mail:
    """A receiver of notices by mail.

    Args:
        host: the SMTP server.
        port: 25, 587 (with STARTTLS) or another.
        sender: address that mails come from.
        to: addresses that get every notice.
        to_owner: send to the job's owner too, where its label ``owner`` is an address.
        starttls: ask for encryption, and refuse to go on without it.
        user: name to log in with; empty for none. Never sent without encryption.
        password: for the login.
        time_limit_s: for one try.

    Raises:
        InputError: an address is none, or a password would be sent in the clear.
    """

    def __init__(
        self,
        host: str,
        *,
        port: int = 25,
        sender: str,
        to: Sequence[str] = (),
        to_owner: bool = True,
        starttls: bool = False,
        user: str = "",
        password: str = "",
        time_limit_s: float = 10.0,
    ) -> None:
        for address in (sender, *to):
            if not _ADDRESS.fullmatch(address):
                message = f"expected a mail address such as ops@example.org, got {address!r}"
                raise InputError(message)
        if user and not starttls:
            message = "a mail login needs starttls = true: a password is not sent in the clear"
            raise InputError(message)
        self._host = host
        self._port = port
        self._sender = sender
        self._to = tuple(to)
        self._to_owner = to_owner
        self._starttls = starttls
        self._user = user
        self._password = password
        self._time_limit_s = time_limit_s

    def send(self, notice: Notice) -> None:
        """Mail one notice; one that concerns nobody with an address goes nowhere.

        Raises:
            EvalStopError: the server did not take it.
        """
        receivers = list(self._to)
        if self._to_owner and _ADDRESS.fullmatch(notice.owner):
            receivers.append(notice.owner)
        if not receivers:
            return
        message = self._message(notice, receivers)
        try:
            with smtplib.SMTP(self._host, self._port, timeout=self._time_limit_s) as server:
                if self._starttls:
                    server.starttls(context=ssl.create_default_context())
                if self._user:
                    server.login(self._user, self._password)
                server.send_message(message, to_addrs=list(dict.fromkeys(receivers)))
        except (OSError, smtplib.SMTPException) as error:
            words = f"the mail server did not take it: {type(error).__name__}"
            raise EvalStopError(words) from None

    def _message(self, notice: Notice, receivers: Sequence[str]) -> EmailMessage:
        message = EmailMessage()
        subject = {
            "stopping": f"Job {notice.job} is being stopped",
            "stopped": f"Job {notice.job} was stopped",
            "advice": f"Job {notice.job}: a stop is advised",
        }.get(notice.kind, "evalstop: an operator's order")
        message["Subject"] = " ".join(subject.split())[:200]
        message["From"] = self._sender
        message["To"] = ", ".join(receivers)
        # The same for every try, so that a mail store shows one that arrived twice once.
        message["Message-ID"] = f"<{notice.id}.{int(notice.time)}@evalstop>"
        message["Auto-Submitted"] = "auto-generated"
        facts = {
            "Rule": notice.rule,
            "Reason": notice.reason,
            "Best step": str(notice.best_step) if notice.best_step >= 0 else "",
            "Checkpoint": notice.best_checkpoint,
            "By": notice.author,
        }
        lines = [notice.text, "", *(f"{name}: {value}" for name, value in facts.items() if value)]
        if notice.job:
            lines += [
                "",
                f"Why: evalstop explain {notice.job}",
                f"Back: evalstop undo {notice.job}",
            ]
        message.set_content("\n".join(lines) + "\n")
        return message
