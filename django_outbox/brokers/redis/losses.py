"""Entries of a stream that are lost: trimmed or deleted before a consumer group has read and stored them."""

from collections.abc import Mapping
from typing import Any

from django_outbox.brokers.redis.encoding import StreamEntry
from django_outbox.utils.logs import logger
from django_outbox.utils.rates import Allowance

LOG_INTERVAL = 60.0
"""Seconds in which lost entries are logged once."""


class Losses:
    """Notices lost entries, and logs them.

    While the entry with the `last_id` that the group has read, or an earlier one, is in the stream, no unread entry was
    trimmed.
    """

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self.last_id: bytes | None = None
        # The number of entries that were ever added up to the last one that was read; 0 until it is needed.
        self._place_of_last = 0
        self._allowance = Allowance(1, LOG_INTERVAL)

    def find_gap(self, group: Mapping[bytes, Any], stream: Mapping[bytes, Any]) -> None:
        """Log a loss if more entries have left the stream, before a read, than the group had read by then.

        Redis 7.0 does not count trimmed entries as read when the group has passed them, so that gap is remembered.
        """
        first, read = stream[b"first-entry"], group.get(b"entries-read")
        if read is None or (first and self.last_id and number_of(first[0]) <= number_of(self.last_id)):
            return
        gone = stream[b"entries-added"] - stream[b"length"]
        if gone > max(read, self._place_of_last):
            self.log()
        self._place_of_last = gone

    def note_read(self, entries: list[StreamEntry]) -> list[StreamEntry]:
        if entries:
            self.last_id = entries[-1].id
            self._place_of_last += len(entries)
        return entries

    def log(self) -> None:
        if self._allowance.take():
            logger.error(
                "%(subject)s: entries were trimmed or deleted before they were stored, and are lost: trim the stream "
                "less (max_length of the publisher, MAXLEN or MINID of XTRIM), or read it faster",
                event="consumer.messages_lost",
                subject=self._subject,
            )


def number_of(id: bytes) -> tuple[int, ...]:
    """Return the ID of an entry as Redis compares it."""
    return tuple(map(int, id.split(b"-")))
