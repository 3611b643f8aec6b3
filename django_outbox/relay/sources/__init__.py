"""Sources: they claim and settle a relay's batches."""

from django_outbox.relay.sources.base import Source
from django_outbox.relay.sources.polling import PollingSource

__all__ = ["PollingSource", "Source"]
