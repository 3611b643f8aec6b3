"""Sources: they claim and settle a relay's batches."""

from django_outbox.relay.sources.log import LogSource
from django_outbox.relay.sources.snapshot import SnapshotSource
from django_outbox.relay.sources.table import TableSource

__all__ = ["LogSource", "SnapshotSource", "TableSource"]
