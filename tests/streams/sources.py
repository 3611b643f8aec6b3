"""The sources of publishers with a stream."""

from collections.abc import Callable, Iterable

from django_outbox.conf import get_settings
from django_outbox.relay.sources import LogFollower, StreamFirst, StreamReader, TableSource


def new_source(using: str, *, transactional: bool = False) -> StreamFirst:
    """Return a source of the default publisher, which has a stream."""
    table = TableSource(using, "default", get_settings(), transactional=transactional)
    return StreamFirst(table, StreamReader(table, streams=True))


def new_log_source(
    using: str, wake: Callable[[Iterable[str]], None] = lambda names: None
) -> tuple[StreamFirst, LogFollower]:
    """Return the same, with PostgreSQL's log."""
    table = TableSource(using, "default", get_settings())
    log = LogFollower(table, wake)
    return StreamFirst(table, StreamReader(table, streams=True, log=log)), log
