"""librdkafka's log, in the log of this package."""

import logging
from typing import Any

from django_outbox.error_text import one_line
from django_outbox.logs import logger

MAX_LENGTH = 500


class Log:
    """Stands in for a `logging.Logger` that librdkafka's bindings call.

    Everything is logged as DEBUG: what matters is in the outcomes, and librdkafka repeats itself during an outage.
    """

    def log(self, level: int, format: str, *arguments: Any) -> None:
        """Log a line."""
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("librdkafka: %s", one_line(format % arguments, MAX_LENGTH))
