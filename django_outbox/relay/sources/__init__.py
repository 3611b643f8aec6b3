"""Sources: they claim and settle a relay's batches."""

from django_outbox.relay.sources.base import Source
from django_outbox.relay.sources.log import LogSource
from django_outbox.relay.sources.polling import PollingSource
from django_outbox.relay.sources.snapshot import SnapshotSource

__all__ = ["LogSource", "PollingSource", "SnapshotSource", "Source"]
