"""The number of entries that vanished from a stream before they were stored."""

import time

from django_outbox.brokers.redis.consumer_options import StreamOptions
from django_outbox.logs import logger

REPORT_INTERVAL = 60.0
"""Minimum seconds between two log lines."""


class Losses:
    """Counts entries that were trimmed or deleted before they were stored, and logs their number now and then.

    Args:
        options: what is read.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._count = 0
        self._report_at = 0.0

    def add(self, count: int) -> None:
        """Count entries; the first ones are logged at once."""
        self._count += max(count, 0)
        if self._count and time.monotonic() >= self._report_at:
            self.report()

    def report(self) -> None:
        """Log the entries that were not logged yet."""
        if not self._count:
            return
        logger.error(
            "Stream %r, group %r: %s entries were trimmed or deleted before they were stored, and are lost: trim the "
            "stream less (max_length of the publisher, MAXLEN or MINID of XTRIM), or read it faster",
            self._options.name,
            self._options.group,
            f"{self._count:,}",
        )
        self._count, self._report_at = 0, time.monotonic() + REPORT_INTERVAL
