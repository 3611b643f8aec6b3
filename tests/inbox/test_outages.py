"""Outages and crashes: of the broker, of the database and of the inbox itself. Each message is stored, once."""

import json
import signal
import time
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError, connections

from django_outbox.brokers.rabbitmq.consumer import ReadingLimits
from django_outbox.exceptions import NotMigrated, RelayUnavailable
from django_outbox.inbox.models import HandledMessage
from django_outbox.inbox.storing import InboxWriter
from django_outbox.models import OutboxMessage
from tests.conftest import ALIASES, LOCKING
from tests.inbox.conftest import QUICK, outbox_of, payloads, read_all, running
from tests.inbox.processes import RUN_INBOX
from tests.support.databases import without_table
from tests.support.ports import free_port
from tests.support.rabbitmq.tools import broker_address, broker_url
from tests.support.scripts import StartProcess
from tests.support.waiting import eventually, stays_same

pytest_plugins = ["tests.support.rabbitmq.fixtures", "tests.support.script_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)


# The broker.


def test_a_queue_that_is_deleted_and_declared_again_is_read_again(source, make_inbox):
    with running(make_inbox()) as inbox:
        source.send(1)
        eventually(lambda: payloads("default") == [1])
        source.broker.channel.queue_delete(source.name)
        (outage,) = eventually(lambda: inbox.outages)
        assert "was deleted" in outage.reason or "declare the queue" in outage.reason
        source.broker.channel.queue_declare(source.name, durable=True)
        source.send(2)
        eventually(lambda: payloads("default") == [1, 2])


def test_a_stream_is_refused(source, make_inbox):
    stream = source.broker.queue("stream")
    source.broker.channel.basic_publish("", stream, b"1")
    with pytest.raises(RelayUnavailable, match="it is a stream; read a classic queue or a quorum queue instead"):
        make_inbox(queue=stream, arguments={"idle_exit": 60}).run()


def test_a_queue_that_refuses_every_consumer_is_one_outage(source, make_inbox, caplog):
    caplog.set_level("INFO")
    exclusive = source.broker.channel.basic_consume(source.name, lambda *_: None, exclusive=True)
    with running(make_inbox(arguments={"limits": replace(QUICK, proof_time=5.0)})) as inbox:
        eventually(lambda: caplog.text.count("reads queue") > 4)
        assert "in exclusive use" in inbox.outages[0].reason
        assert caplog.text.count("is unavailable") == 1
        assert "available again" not in caplog.text
        source.broker.channel.basic_cancel(exclusive)
        source.send(1)
        eventually(lambda: payloads("default") == [1])
        eventually(lambda: not inbox.outages)
    assert caplog.text.count("available again") == 1


def test_heartbeats_are_sent_while_the_database_is_slow(source, make_inbox, monkeypatch):
    store = InboxWriter.store

    def slowly(self, batch):
        # RabbitMQ ends a connection after two or three intervals without one.
        time.sleep(5)
        return store(self, batch)

    monkeypatch.setattr(InboxWriter, "store", slowly)
    source.send(1)
    inbox = make_inbox(url=broker_url(query="heartbeat=1"))
    read_all(inbox, source)
    assert source.unsettled() == 0
    assert inbox.tally.received == 1


def test_pika_warns_of_nothing_if_heartbeats_are_switched_off(source, make_inbox, caplog):
    source.send(*range(5))
    read_all(make_inbox(url=broker_url(query="heartbeat=0")), source)
    assert "heartbeat" not in caplog.text


def test_a_reader_that_stands_still_lets_little_more_be_read_in_every_interval(source, make_inbox, monkeypatch):
    """Heartbeats must be read, and with them comes one read of the socket, of at most 100 KiB."""
    interval, body, batch_bytes = 0.1, "x" * 1_000, 100_000
    store = InboxWriter.store
    growths: list[tuple[float, int]] = []

    def stand_still(self, batch):
        intake = inbox.consumers[0]._connection.intake
        if not growths:
            eventually(lambda: not intake.has_room)
            started, size = time.monotonic(), intake._size
            time.sleep(5 * interval)
            growths.append((time.monotonic() - started, intake._size - size))
        return store(self, batch)

    inbox = make_inbox(batch_bytes=batch_bytes)
    inbox.consumers[0].limits = ReadingLimits(first_size=2000, read_interval=interval)
    monkeypatch.setattr(InboxWriter, "store", stand_still)
    source.send(*[body] * 1_900)
    eventually(lambda: source.unsettled() == 1_900)
    read_all(inbox, source)
    assert len(payloads("default")) == 1_900
    [(seconds, growth)] = growths
    assert 0 < growth <= (seconds / interval + 2) * 2 * 102_400


# The database.


@pytest.mark.parametrize("using", LOCKING)
def test_while_the_database_is_unavailable_the_messages_stay_in_the_queue(using, source, make_inbox):
    server = connections.databases[using]
    port = server["PORT"]
    inbox = make_inbox(using)
    source.send(1, 2, 3)
    server["PORT"] = str(free_port())
    try:
        with running(inbox):
            eventually(lambda: inbox.outages)
            assert inbox.outages[0].subject == f"Database {using!r}"
            eventually(lambda: source.unsettled() == 3)
            server["PORT"] = port
            eventually(lambda: payloads(using) == [1, 2, 3])
            eventually(lambda: source.unsettled() == 0)
    finally:
        server["PORT"] = port


def test_messages_in_hand_are_held(source, make_inbox, writing):
    """The database can be read, but stores nothing, as a standby does."""
    writing.error = OperationalError("cannot execute INSERT in a read-only transaction")
    inbox = make_inbox()
    inbox.consumers[0].limits = ReadingLimits(first_size=3)
    source.send(1, 2, 3)
    with running(inbox):
        eventually(lambda: writing.attempts > 20)
        # RabbitMQ counts messages that a consumer has in hand no longer as those of the queue.
        assert source.unsettled() == 0
        writing.error = None
        eventually(lambda: payloads("default") == [1, 2, 3])
        eventually(lambda: source.unsettled() == 0)


def test_an_inbox_that_ends_when_idle_gives_up_if_the_database_remains_unavailable(source, make_inbox, writing):
    writing.error = OperationalError("the server has gone away")
    source.send(1)
    with pytest.raises(RelayUnavailable, match="the server has gone away"):
        make_inbox(arguments={"idle_exit": 60}).run()
    eventually(lambda: source.unsettled() == 1)


@pytest.mark.parametrize("model", [OutboxMessage, HandledMessage], ids=["outbox", "inbox"])
def test_a_missing_table_ends_the_inbox(source, make_inbox, model):
    source.send(1)
    with without_table("postgresql", model), pytest.raises(NotMigrated, match=r"manage\.py migrate"):
        make_inbox("postgresql", remember=True).run()
    eventually(lambda: source.unsettled() == 1)


# The backlog.


def test_an_inbox_that_pauses_because_of_the_backlog_is_not_idle(source, make_inbox):
    source.send(*range(60))
    with running(make_inbox(max_backlog=10, batch_size=1, arguments={"idle_exit": 0.3})) as inbox:
        eventually(lambda: inbox.paused)
        assert eventually(lambda: stays_same(lambda: len(payloads("default"))))
        assert 10 < len(payloads("default")) < 60

        def deliver() -> bool:
            OutboxMessage.objects.pending().update(**PROCESSED)
            return len(payloads("default")) == 60

        eventually(deliver)
    assert payloads("default") == [*range(60)]


PROCESSED = {"available_at": None, "processed_at": "2026-01-01T00:00Z", "blocks_key": False}


# The process.


@pytest.fixture
def run_inbox(start: StartProcess, source) -> StartProcess:
    """Start `run_inbox` on the test's database, to hang at a point of the third batch."""

    def run(alias: str, point: str, *flags: str, **options: Any) -> Any:
        name = str(connections[alias].settings_dict["NAME"])
        return start(RUN_INBOX, alias, name, json.dumps(outbox_of(source, **options)), point, *flags)

    return run


def test_a_signal_ends_it_in_time_with_exit_code_0(source, run_inbox):
    source.send(1, 2)
    process = run_inbox("postgresql", "nowhere")
    eventually(lambda: payloads("postgresql") == [1, 2])
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    out, log = process.stdout.read().decode(), process.stderr.read().decode()
    assert out == ""
    assert "started on" in log
    assert f"consumer 'billing' (queue {source.name!r} at {broker_address()}) for publisher 'default'." in log
    assert "Inbox ended after" in log
    assert "guest:guest" not in log


def test_an_inbox_that_hangs_ends_within_the_stop_timeout(source, run_inbox):
    source.send(*range(20))
    process = run_inbox("postgresql", "inside", "--stop-timeout", "1", batch_size=2)
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert b"not finished in time. Their messages are still in the queue" in process.stderr.read()
    # Two batches, of one or two messages each.
    assert 2 <= len(payloads("postgresql")) <= 4
    eventually(lambda: source.unsettled() == 20 - len(payloads("postgresql")))
