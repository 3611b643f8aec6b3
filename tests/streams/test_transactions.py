"""What transactions do to a stream: savepoints, prepared and large transactions, and one that stays open."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest
from django.db import connections, transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue
from django_outbox.models import Status, StreamPosition
from django_outbox.relay.sources import StreamFirst
from tests.conftest import ALIASES
from tests.streams.sources import PG, STREAMED, deliver, drain, new_source
from tests.support.messages import write
from tests.support.pgbouncer import behind_pgbouncer
from tests.support.publishers import SCRIPTED, Script
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

OUTBOX = STREAMED


def test_a_message_id_that_is_streamed_already_writes_nothing(scripted: Script):
    (first,) = write(PG, message_id="01978f2c-0000-7000-8000-000000000001")
    assert write(PG, message_id="01978f2c-0000-7000-8000-000000000001") == [first]
    assert drain() == 1
    assert write(PG, message_id="01978f2c-0000-7000-8000-000000000001") == [first]
    assert drain() == 0


def test_an_event_for_a_stream_and_a_table_is_delivered_to_both(scripted: Script):
    publishers = {**STREAMED["PUBLISHERS"], "second": STREAMED["PUBLISHERS"]["default"], "third": SCRIPTED}
    with override_settings(OUTBOX={"PUBLISHERS": publishers, "ROUTES": {"t": ["default", "second", "third"]}}):
        with transaction.atomic(using=PG):
            enqueue("t", 1, key="k", using=PG)
        assert drain() == 3
        assert {message.status for message in OutboxMessage.objects.using(PG)} == {Status.PROCESSED}


@pytest.fixture
def worker() -> StreamFirst:
    return new_source(PG)


def lose_transaction(first: int, second: int) -> None:
    """Give a message the number of an earlier one's transaction, which did not reach the disk before a crash."""
    xid = OutboxMessage.objects.using(PG).get(pk=first).xid
    OutboxMessage.objects.using(PG).filter(pk=second).update(xid=xid)


@pytest.mark.parametrize("end", ["the session", "the claim"])
def test_no_snapshot_from_before_a_crash_is_used_after_it(end: str, worker: StreamFirst, scripted: Script):
    deliver(worker)
    (first,) = write(PG, 1)
    with suppress(ConnectionError), worker.claim(10) as claim:
        assert [message.id for message in claim.messages] == [first]
        if end == "the claim":
            raise ConnectionError
    if end == "the session":
        connections[PG].close()
    (second,) = write(PG, 1)
    lose_transaction(first, second)
    for _ in range(2):
        deliver(worker)
    assert scripted.published() == [first, second]


class TestBehindPgBouncer:
    """A crash of the server between two claims, which a client of a pool does not notice."""

    @pytest.fixture(autouse=True)
    def crash(self) -> Iterator[Callable[[], None]]:
        """End all server processes of the pool."""
        with closing(connections[PG].copy()) as direct, behind_pgbouncer(PG, "transaction"):

            def end_all() -> None:
                with direct.cursor() as cursor:
                    cursor.execute(
                        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
                    )

            yield end_all

    def test_no_snapshot_from_before_a_crash_is_used_after_it(
        self, crash: Callable[[], None], worker: StreamFirst, scripted: Script
    ):
        deliver(worker)
        (first,) = write(PG, 1)
        with worker.claim(10) as claim:
            assert [message.id for message in claim.messages] == [first]
        session = connections[PG].connection
        (second,) = write(PG, 1)
        lose_transaction(first, second)
        crash()
        for _ in range(2):
            deliver(worker)
        assert scripted.published() == [first, second]
        assert connections[PG].connection is session

    def test_no_message_of_the_table_overtakes_its_key_after_a_crash(
        self, crash: Callable[[], None], worker: StreamFirst, scripted: Script
    ):
        deliver(worker)
        positions = StreamPosition.objects.using(PG)
        (stored,) = positions.values("passed", "page", "page_start", "page_end")
        (first,) = write(PG, 1, key="k")
        deliver(worker)
        write(PG, 1)
        deliver(worker)
        scripted.reset()
        (second,) = write(PG, 1, key="k")
        (third,) = write(PG, 1, key="k", delay=0.001)
        lose_transaction(first, second)
        lose_transaction(first, third)
        # The crash loses the earlier messages and the transactions that moved the position.
        OutboxMessage.objects.using(PG).filter(pk__lt=second).delete()
        positions.update(**stored)
        crash()
        worker.sweep_next()
        eventually(lambda: deliver(worker).tally.processed and len(scripted.published()) == 2)
        assert scripted.published() == [second, third]
