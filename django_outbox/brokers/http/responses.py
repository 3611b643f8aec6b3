"""The outcome that each response stands for."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from django_outbox.messages import ACCEPTED, Outcome, rejected, retry_later

BUSY = frozenset((429, 503))
"""The receiver asks to wait, whatever the message: RFC 6585, section 4, and RFC 9110, section 15.6.4."""

RETRIED = frozenset((408, 425))
"""Of the statuses below 500, those that a repetition may change: RFC 9110, section 15.5.9 (the request took too long),
and RFC 8470, section 5.2 (too early). All others blame the request."""

MAX_WAIT = 86_400
"""Maximum number of seconds of a `Retry-After` that counts."""


@dataclass(frozen=True, slots=True)
class Response:
    """What is kept of a response. Its body is not.

    Args:
        status: the status code.
        retry_after: seconds to wait, as the receiver asked for, or None.
        location: the host that a redirect names; blank without one.
    """

    status: int
    retry_after: float | None = None
    location: str = ""

    @property
    def text(self) -> str:
        """The status with its standard reason: the text in the response may be anything."""
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return str(self.status)


class Statuses:
    """The outcomes of responses.

    Args:
        reject: statuses of messages that fail at once, besides or instead of the usual ones.
        retry: statuses of messages that are retried, besides or instead of the usual ones.

    Raises:
        ImproperlyConfigured: one of them is not a list of statuses from 400 to 599, or a status is in both.
    """

    def __init__(self, reject: object, retry: object) -> None:
        self._reject, self._retry = _read("reject", reject), _read("retry", retry)
        if both := self._reject & self._retry:
            raise ImproperlyConfigured(f"reject and retry both contain {min(both)}; leave it in one of them.")

    def is_busy(self, response: Response) -> bool:
        """Return whether the receiver asks to wait, and no message is to blame."""
        return response.status in BUSY and response.status not in self._reject | self._retry

    def outcome(self, response: Response) -> Outcome:
        """Return the outcome of the message to which the receiver responded, unless the receiver is busy."""
        status = response.status
        if 200 <= status < 300:
            return ACCEPTED
        error_class = f"http.{status}"
        if 300 <= status < 400:
            place = f" to the host {response.location!r}" if response.location else ""
            text = f"the receiver responded {response.text}, a redirect{place}; set url to the address of the receiver"
            return rejected(text, error_class=error_class)
        text = f"the receiver responded {response.text}"
        if status in self._retry or (status not in self._reject and (status in RETRIED or status >= 500)):
            return retry_later(text, error_class=error_class, retry_after=response.retry_after)
        return rejected(text, error_class=error_class)


def read_retry_after(value: bytes, now: float) -> float | None:
    """Return the seconds of a header `Retry-After`, at most a day; None if it cannot be read.

    https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3

    Args:
        value: seconds, or an HTTP date.
        now: the Unix time.
    """
    text = value.decode("latin-1").strip()
    # A number of seconds of a century has ten digits.
    if text.isascii() and text.isdigit():
        return float(min(int(text[:10]), MAX_WAIT))
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.timezone.utc)
    return min(max(date.timestamp() - now, 0.0), float(MAX_WAIT))


def read_location(value: bytes) -> str:
    """Return the host in a header `Location`; blank if there is none."""
    try:
        return urlsplit(value.decode("latin-1")).hostname or ""
    except ValueError:
        return ""


def _read(option: str, statuses: object) -> frozenset[int]:
    given: Sequence[object] = statuses if isinstance(statuses, list | tuple) else [None]
    found = frozenset(status for status in given if type(status) is int and 400 <= status <= 599)
    if len(found) != len(given):
        raise ImproperlyConfigured(
            f"{option} is {statuses!r}; it must be a list of different statuses from 400 to 599."
        )
    return found
