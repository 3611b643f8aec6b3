"""Django's connection pool, `"OPTIONS": {"pool": …}`, in a process with callers and a relay."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from tests.stacks import load
from tests.stacks.load import BATCHES, RELAY, assert_delivered, callers, flow
from tests.streams.test_servers import Server
from tests.support.publishers import Script
from tests.support.relay_threads import running_relay

OUTBOX = load.OUTBOX


@pytest.fixture
def server(django_db_blocker: Any, scripted: Script) -> Iterator[Server]:
    with load.own_servers(1, django_db_blocker) as (made,):
        yield made


def test_a_restart_of_the_database_loses_nothing(server: Server, scripted: Script):
    pool = {"min_size": 1, "max_size": 2, "timeout": 20}
    with load.another_alias(server.alias, pool=pool) as alias:
        with running_relay(using=alias, **RELAY):
            with callers(alias, 4) as errors:
                for _ in range(2):
                    flow(scripted)
                    server.stop()
                    server.start()
                flow(scripted)
                # The connections of the pool are replaced, and the relay takes none of them.
                seen = len(errors)
                flow(scripted)
                assert len(errors) == seen
                pooled: Any = connections[alias]
                assert pooled.pool.get_stats()["pool_size"] <= 2
            assert_delivered(scripted, server.alias, repeats=2 * BATCHES)
        pooled.close_pool()
