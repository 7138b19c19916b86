"""One POST, signed, so that a receiver can tell it from a forged or replayed one.

    Evalstop-Timestamp: 1795963908
    Evalstop-Notice: 1042.0                  the same for every try: drop what you have seen
    Evalstop-Signature: v1=HEX               HMAC-SHA256 of "TIMESTAMP.BODY" under the shared secret

`verify` is what a receiver written in Python calls. Redirects are not followed: a signed notice
goes where the operator said, or nowhere.
"""

from __future__ import annotations

import hashlib
import hmac
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from evalstop.core.errors import EvalStopError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from evalstop.service.notify.notice import Notice

__all__ = ["Webhook", "signature", "verify"]

_VERSION = "v1"
_MARKS = {"stopping": ":octagonal_sign:", "stopped": ":white_check_mark:", "advice": ":eyes:"}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 -- the library's signature
        return None


class Webhook:
    """A receiver of notices over HTTP.

    Args:
        url: http or https.
        secret: shared with the receiver; empty sends unsigned (Slack verifies by its URL).
        form: "json" sends the notice's fields, "slack" a message that Slack shows.
        time_limit_s: for one try.
        now: seconds since 1970.

    Raises:
        InputError: the URL is not one that can be posted to.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str = "",
        form: Literal["json", "slack"] = "json",
        time_limit_s: float = 10.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            message = f"expected a webhook's URL to begin with https:// or http://, got {url!r}"
            raise InputError(message)
        self._url = url
        self._secret = secret
        self._form = form
        self._time_limit_s = time_limit_s
        self._now = now
        self._opener = urllib.request.build_opener(_NoRedirects)

    def send(self, notice: Notice) -> None:
        """Post one notice.

        Raises:
            EvalStopError: it did not arrive; the message holds neither secret nor URL.
        """
        body = msgspec.json.encode(notice if self._form == "json" else _slack(notice))
        request = urllib.request.Request(self._url, data=body, method="POST")  # noqa: S310 -- checked above
        request.add_header("Content-Type", "application/json")
        request.add_header("User-Agent", "evalstop")
        request.add_header("Evalstop-Notice", notice.id)
        if self._secret:
            timestamp = f"{self._now():.0f}"
            request.add_header("Evalstop-Timestamp", timestamp)
            request.add_header("Evalstop-Signature", signature(self._secret, timestamp, body))
        try:
            with self._opener.open(request, timeout=self._time_limit_s) as answer:
                answer.read(1024)
        except urllib.error.HTTPError as error:
            error.close()
            message = f"the receiver answered {error.code}"
            raise EvalStopError(message) from None
        except (OSError, ValueError) as error:  # URLError, time-outs, odd answers
            message = f"the receiver cannot be reached: {type(error).__name__}"
            raise EvalStopError(message) from None


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a body at a time, as the header carries it."""
    signed = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"{_VERSION}={signed.hexdigest()}"


def verify(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_s: float = 300.0,
    now: float | None = None,
) -> bool:
    """Return whether a request is from evalstop, unchanged and recent.

    Args:
        secret: shared with evalstop.
        headers: of the request.
        body: as received, not parsed and written again.
        tolerance_s: how old it may be.
        now: seconds since 1970; this machine's clock if not given.
    """
    named = {name.lower(): value for name, value in headers.items()}
    timestamp = named.get("evalstop-timestamp", "")
    if not (timestamp.isascii() and timestamp.isdigit()):
        return False
    age = (time.time() if now is None else now) - float(timestamp)
    expected = signature(secret, timestamp, body)
    given = named.get("evalstop-signature", "").encode(errors="replace")
    return abs(age) <= tolerance_s and hmac.compare_digest(expected.encode(), given)


def _slack(notice: Notice) -> dict[str, Any]:
    """Return a message of Slack's incoming webhooks: a text, and blocks for those who show them."""
    text = f"{_MARKS.get(notice.kind, ':information_source:')} {_escaped(notice.text)}"
    facts = {
        "Job": notice.job,
        "Tenant": notice.tenant,
        "Rule": notice.rule,
        "By": notice.author,
        "Best step": str(notice.best_step) if notice.best_step >= 0 else "",
        "Best score": "" if notice.best_score is None else f"{notice.best_score:.6g}",
    }
    fields = [
        {"type": "mrkdwn", "text": f"*{name}*\n{_escaped(value)}"}
        for name, value in facts.items()
        if value
    ]
    blocks: list[dict[str, Any]] = [
        {"type": "section", "text": {"type": "mrkdwn", "text": text[:3000]}}
    ]
    if fields:
        blocks.append({"type": "section", "fields": fields})
    return {"text": text, "blocks": blocks}


def _escaped(text: str) -> str:
    """Return text in which Slack sees no markup, links or mentions."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
