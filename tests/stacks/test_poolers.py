"""PgBouncer, Odyssey and pgpool-II between the outbox and PostgreSQL: for callers, and for relays of all sources."""

import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections, transaction

from django_outbox import OutboxMessage
from django_outbox.inbox import once
from django_outbox.monitoring.status import read_status
from tests.stacks import load
from tests.stacks.load import BATCHES, RELAY, SOURCES, assert_delivered, callers, flow, write
from tests.stacks.poolers import Pooler, pooler
from tests.streams.test_servers import Server
from tests.support.publishers import Script
from tests.support.relay_threads import QUICK, running_relay
from tests.support.waiting import eventually

OUTBOX = load.OUTBOX

OPTIONS = {
    "plain": {},
    "prepared statements": {"prepare_threshold": 0},
    "binding on the server": {"prepare_threshold": 0, "server_side_binding": True},
}


@pytest.fixture(scope="module")
def server(django_db_blocker: Any) -> Iterator[Server]:
    with load.own_servers(1, django_db_blocker) as (made,):
        yield made


@pytest.fixture(params=["pgbouncer", "odyssey", "pgpool"])
def behind(request: pytest.FixtureRequest, server: Server, scripted: Script) -> Iterator[Pooler]:
    load.empty(server.alias)
    with pooler(request.param, server) as made:
        yield made


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_restart_of_the_pooler_loses_nothing(
    behind: Pooler, server: Server, scripted: Script, options: dict[str, Any]
):
    with load.another_alias(behind.alias, **options) as alias, running_relay(using=alias, **RELAY):
        with callers(alias):
            for _ in range(2):
                flow(scripted)
                behind.stop()
                behind.start()
            flow(scripted)
        assert_delivered(scripted, server.alias, repeats=2 * BATCHES)


def test_a_relay_polls_unless_it_has_its_own_session(
    behind: Pooler, server: Server, scripted: Script, caplog: pytest.LogCaptureFixture
):
    # pgpool-II gives each client a session, and passes notifications on.
    hears = behind.name == "pgpool"
    interval = 3600.0 if hears else 2.0
    relay = {**RELAY, "poll_interval": interval, "limits": replace(QUICK, first_idle_wait=interval)}
    with caplog.at_level(logging.INFO, logger="django_outbox"), running_relay(using=behind.alias, **relay):
        # The detection takes up to three seconds.
        time.sleep(5)
        for source in SOURCES:
            (begin, id) = time.monotonic(), write(behind.alias, source)
            eventually(lambda: id in scripted.published(), "the relay was woken, or polled")  # noqa: B023
            assert time.monotonic() - begin < 10
    assert caplog.text.count("no notifications reach the relay") == int(not hears)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_a_commit_through_the_pooler_wakes_a_relay_that_is_connected_directly(
    behind: Pooler, server: Server, scripted: Script
):
    limits = replace(QUICK, first_idle_wait=3600.0)
    with running_relay(using=server.alias, publishers=["table"], poll_interval=3600, limits=limits):
        time.sleep(5)
        for _ in range(3):
            id = write(behind.alias, "table")
            eventually(lambda: id in scripted.published(), "the relay was woken", seconds=20)  # noqa: B023
            time.sleep(1)


class TestPgpoolWithALaggingStandby:
    """pgpool-II sends each read to the standby that it takes for one; all others must go to the primary."""

    @pytest.fixture
    def primary(self, django_db_blocker: Any, scripted: Script) -> Iterator[Server]:
        with load.lagging_standby(django_db_blocker) as both, pooler("pgpool", *both) as self.pool:
            yield both[0]

    def test_nothing_is_decided_on_the_standby(self, primary: Server, scripted: Script):
        using, known = self.pool.alias, str(uuid.uuid4())
        for is_new in (True, False):
            with transaction.atomic(using=using):
                assert once(known, "shop", using=using) is is_new
        with running_relay(using=using, **RELAY):
            with callers(using):
                flow(scripted, 200)
            assert_delivered(scripted, primary.alias, repeats=0)
        for source in SOURCES:
            message = OutboxMessage.objects.using(using).filter(pk=write(using, source))
            # The standby does not have it.
            assert not message.exists()
            assert [message.hold(), message.cancel(), message.requeue(), message.cancel()] == [1, 1, 1, 1], source

    def test_monitoring_needs_a_name_that_pgpool_sends_to_the_primary(self, primary: Server):
        id = write(primary.alias, "table")
        assert OutboxMessage.objects.using(primary.alias).filter(pk=id).cancel() == 1
        with load.another_alias(self.pool.alias, application_name="outbox") as alias:
            assert read_status(alias).verdict.code == "failed"
        connections[self.pool.alias].close()
        assert read_status(self.pool.alias).verdict.code == "idle"
