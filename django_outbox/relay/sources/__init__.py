"""Sources: they claim and settle a relay's batches."""

from django_outbox.relay.sources.log import LogFollower
from django_outbox.relay.sources.stream import StreamReader
from django_outbox.relay.sources.stream_first import StreamFirst
from django_outbox.relay.sources.table import TableSource

__all__ = ["LogFollower", "Source", "StreamFirst", "StreamReader", "TableSource"]

Source = TableSource | StreamFirst
"""What the relay claims from."""
