"""Relays report that they are alive, and what they have delivered."""

import datetime
import logging
import os
import socket
import subprocess
import sys
from dataclasses import replace
from threading import Event, get_ident
from typing import Any

import pytest

from django_outbox.handlers import handler
from django_outbox.handlers.registry import HandlerRegistry
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected
from django_outbox.models import DeliveryCount, Heartbeat, OutboxMessage
from django_outbox.monitoring import Level
from django_outbox.monitoring.status import read_status
from django_outbox.relay import Limits, Relay
from django_outbox.relay.batch import DeliveryResult
from django_outbox.relay.delivery import Delivery
from django_outbox.retry import Backoff
from django_outbox.stores.clock import read_clock
from django_outbox.utils.process import name_process
from tests.conftest import ALIASES, LOCKING
from tests.support.databases import without_table
from tests.support.effects import HANDLERS
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import relays_in_threads, running_relay
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

NAME = name_process()
OFTEN = Limits(report_pace=0.01, report_patience=20)


@pytest.fixture(autouse=True)
def publishers(settings: Any, scripted: Script) -> None:
    settings.OUTBOX = {"PUBLISHERS": {"default": SCRIPTED, "audit": SCRIPTED}}


def refuse_odd(message: Message) -> Outcome:
    return rejected("odd") if int(message.payload) % 2 else ACCEPTED


def counted(using: str) -> list[tuple[Any, ...]]:
    counts = DeliveryCount.objects.using(using).filter(seconds=60)
    rows = counts.values_list("publisher", "relay", "processed", "failed")
    return sorted(rows)


@pytest.mark.parametrize("using", LOCKING)
def test_a_running_relay_reports_itself_its_totals_and_the_minutes(using: str, scripted: Script):
    scripted.answer = refuse_odd
    put(10, using)
    put(3, using, publisher="audit")
    reports = Heartbeat.objects.using(using)
    with running_relay(using=using, workers=2, limits=OFTEN):
        eventually(lambda: reports.filter(pk=NAME, processed=7, failed=6).exists())
        report = reports.get()
        assert (report.mode, report.workers, report.stopped_at) == ("run", 2, None)
        closed = {"state": "closed", "reason": "", "since": None, "refused": ""}
        assert report.publishers == {"default": closed, "audit": closed}
        eventually(lambda: sum(row[2] + row[3] for row in counted(using)) == 13)
        assert {row[:2] for row in counted(using)} == {("default", NAME), ("audit", NAME)}
        assert [relay.alive for relay in read_status(using).relays] == [True]
    assert reports.get().stopped_at is not None
    assert [relay.alive for relay in read_status(using).relays] == [False]


@pytest.mark.parametrize("using", LOCKING)
@pytest.mark.parametrize("transaction", [True, False])
def test_a_relay_reports_the_handler_that_is_running(
    using: str, transaction: bool, handlers: HandlerRegistry, settings: Any
):
    returned = Event()

    @handler("order.created")
    def pay(payload: Any, message: Message) -> None:
        returned.wait(20)

    settings.OUTBOX = {"PUBLISHERS": {"default": {**HANDLERS, "OPTIONS": {"transaction": transaction}}}}
    (id,) = put(1, using, type="order.created")

    def calls() -> list[tuple[str, int]]:
        found = (publisher.call for publisher in read_status(using).publishers)
        return [(call.handler, call.id) for call in found if call and call.seconds > 0.2]

    try:
        with running_relay(using=using, limits=OFTEN) as relay:
            eventually(lambda: calls() == [(pay.name, id)])
            returned.set()
            eventually(lambda: relay.tally.processed == 1 and not calls())
    finally:
        returned.set()


@pytest.mark.parametrize("using", LOCKING)
def test_a_relay_reports_that_it_has_stopped_even_if_its_batch_hangs(using: str, scripted: Script):
    published, answered = Event(), Event()

    def answer(message: Message) -> Outcome:
        published.set()
        answered.wait(30)
        return ACCEPTED

    scripted.answer = answer
    put(1, using)
    try:
        with running_relay(using=using, limits=replace(OFTEN, report_pace=1.0)) as relay:
            assert published.wait(30)
            relay.stop()
            eventually(lambda: [each.state for each in read_status(using).relays] == ["stopped"])
            answered.set()
    finally:
        answered.set()
    assert [(each.state, each.processed) for each in read_status(using).relays] == [("stopped", 1)]


@pytest.mark.slow
def test_a_relay_signs_off_before_its_listener_has_noticed_that_it_stops():
    """`runserver` kills its process 0.25 seconds after Ctrl-C."""
    reports = Heartbeat.objects.using("postgresql")
    with running_relay(using="postgresql", limits=replace(OFTEN, listen_time=8.0)) as relay:
        put(1, "postgresql")
        eventually(lambda: relay.tally.processed == 1)
        relay.stop()
        eventually(lambda: reports.filter(stopped_at__isnull=False, processed=1).exists(), seconds=5)


@pytest.mark.parametrize("using", LOCKING)
def test_all_relays_of_a_process_report_to_one_row(using: str, caplog: pytest.LogCaptureFixture):
    """As Celery's threads do that drain at the same time."""
    with caplog.at_level(logging.WARNING, "django_outbox"), relays_in_threads(using=using, limits=OFTEN) as start:
        for _ in range(8):
            start()
        eventually(lambda: Heartbeat.objects.using(using).exists())
        put(200, using)
        eventually(lambda: sum(row[2] for row in counted(using)) == 200)
    assert "could not be written" not in caplog.text
    assert [row[:2] for row in counted(using)] in ([("default", NAME)], [("default", NAME)] * 2)


@pytest.mark.parametrize("using", LOCKING)
@pytest.mark.parametrize("mode", ["drain", "once"])
def test_a_drain_reports_when_it_ends(using: str, mode: str):
    put(4, using)
    with Relay(using=using, limits=OFTEN) as relay:
        relay.drain() if mode == "drain" else relay.deliver_once()
    report = Heartbeat.objects.using(using).get()
    assert (report.mode, report.processed) == (mode, 4)
    assert [row[2] for row in counted(using)] == [4]
    assert [publisher.drains for publisher in read_status(using).publishers][:1] == [1]


@pytest.mark.parametrize("using", LOCKING)
def test_drains_of_one_process_add_up_in_one_row_of_a_minute(using: str):
    for _ in range(3):
        put(2, using)
        with Relay(using=using, limits=OFTEN) as relay:
            relay.drain()
    assert Heartbeat.objects.using(using).count() == 1
    assert sum(row[2] for row in counted(using)) == 6
    # Three if a minute ended between them.
    assert len(counted(using)) <= 2


def test_processes_with_one_host_name_and_process_id_have_different_names():
    script = "import os, django; django.setup(); os.getpid = lambda: 1; from django_outbox.utils import process; "
    command = [sys.executable, "-c", f"{script}print(process.name_process())"]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    runs = [subprocess.run(command, capture_output=True, text=True, env=environment, check=True) for _ in range(2)]
    first, second = [each.stdout.strip() for each in runs]
    assert first != second
    assert all(name.startswith(f"{socket.gethostname()}:1:") for name in (first, second))


def test_a_forked_process_has_its_own_name(monkeypatch: pytest.MonkeyPatch):
    parent = name_process()
    child_pid = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child_pid)
    child = name_process()
    assert child.startswith(f"{socket.gethostname()}:{child_pid}:")
    assert child.rpartition(":")[2] != parent.rpartition(":")[2]


@pytest.mark.parametrize("using", LOCKING)
def test_a_relay_leaves_the_report_of_another_one_with_its_host_name_and_process_id(using: str):
    """Containers that share the network of their host have one host name, and each of them may be process 1."""
    given = {"host": socket.gethostname(), "pid": os.getpid(), "mode": "run", "workers": 1}
    other = Heartbeat.objects.using(using).create(relay=f"{socket.gethostname()}:{os.getpid()}:other", **given)
    put(3, using)
    reports = Heartbeat.objects.using(using)
    with running_relay(using=using, limits=OFTEN):
        eventually(lambda: reports.filter(pk=NAME, processed=3).exists())
        # The other one dies while this one runs.
        reports.filter(pk=other.pk).update(seen_at=reports.get(pk=NAME).started_at + datetime.timedelta(microseconds=1))
        assert {relay.name for relay in read_status(using).relays if relay.alive} == {NAME, other.pk}
        assert {relay.processed for relay in read_status(using).relays} == {0, 3}


@pytest.mark.parametrize("using", LOCKING)
def test_the_report_of_a_predecessor_is_deleted_when_it_has_been_silent_for_minutes(using: str):
    given = {"host": socket.gethostname(), "pid": os.getpid(), "mode": "run", "workers": 1}
    now = read_clock(using)
    for name, minutes in (("just-gone", 1), ("gone", 4)):
        seen_at = now - datetime.timedelta(minutes=minutes)
        Heartbeat.objects.using(using).create(relay=name, seen_at=seen_at, **given)
    Heartbeat.objects.using(using).create(relay="elsewhere", seen_at=seen_at, **{**given, "host": "elsewhere"})
    put(1, using)
    with Relay(using=using, limits=OFTEN) as relay:
        relay.drain()
    assert {report.relay for report in Heartbeat.objects.using(using)} == {NAME, "just-gone", "elsewhere"}


@pytest.mark.parametrize("using", LOCKING)
def test_old_reports_and_counts_are_deleted(using: str):
    long_ago = "2020-01-01T00:00:00Z"
    Heartbeat.objects.using(using).create(relay="old:1", host="old", pid=1, workers=1, seen_at=long_ago)
    for seconds in (10, 60):
        counts = DeliveryCount.objects.using(using)
        counts.create(start=long_ago, seconds=seconds, publisher="default", relay="old:1", processed=1)
    put(1, using)
    with Relay(using=using, limits=OFTEN) as relay:
        relay.drain()
    assert [report.relay for report in Heartbeat.objects.using(using)] == [NAME]
    assert set(DeliveryCount.objects.using(using).values_list("seconds", "relay")) == {(10, NAME), (60, NAME)}


@pytest.mark.parametrize("using", LOCKING)
def test_a_relay_that_may_not_report_delivers_and_logs_it_once(using: str, caplog: pytest.LogCaptureFixture):
    put(5, using)
    caplog.set_level(logging.WARNING, "django_outbox")
    with without_table(using, Heartbeat), running_relay(using=using, limits=OFTEN):
        eventually(lambda: not OutboxMessage.objects.using(using).pending().exists())
        eventually(lambda: "report could not be written" in caplog.text)
        put(5, using)
        eventually(lambda: not OutboxMessage.objects.using(using).pending().exists())
    assert caplog.text.count("report could not be written; delivery goes on") == 1


@pytest.mark.parametrize("using", LOCKING)
def test_a_worker_that_crashes_is_reported_with_its_reason(using: str, monkeypatch: pytest.MonkeyPatch):
    def crash(*_: Any, **__: Any) -> None:
        raise RuntimeError("no idea")

    monkeypatch.setattr(Delivery, "run", crash)
    limits = replace(OFTEN, restart_wait=Backoff(delay=0.1, max_delay=1.0))
    with running_relay(using=using, publishers=["default"], limits=limits):
        eventually(lambda: crashes(using) >= 3)
        status = read_status(using)
        assert status.publishers[0].breaker == "crashed"
        assert status.publishers[0].outage is not None
        assert status.publishers[0].outage.reason == "RuntimeError: no idea"
        assert (status.verdict.code, status.verdict.publisher, status.level) == ("crashed", "default", Level.CRITICAL)


def crashes(using: str) -> int:
    outage = read_status(using).publishers[0].outage
    return outage.crashes if outage else 0


def test_crashes_of_several_workers_do_not_add_up(using: str, monkeypatch: pytest.MonkeyPatch):
    crashed: set[int] = set()
    run = Delivery.run

    def crash_once(delivery: Delivery, wanted: int, **options: bool) -> DeliveryResult:
        if get_ident() in crashed:
            return run(delivery, wanted, **options)
        crashed.add(get_ident())
        raise RuntimeError("no idea")

    monkeypatch.setattr(Delivery, "run", crash_once)
    # A crash is remembered for twice the longest wait.
    limits = replace(OFTEN, restart_wait=Backoff(delay=0.1, max_delay=60.0))
    with running_relay(using=using, publishers=["default"], workers=3, limits=limits) as relay:
        eventually(lambda: len(crashed) == 3 and crashes(using))
        put(1, using)
        eventually(lambda: relay.tally.processed == 1)
        eventually(lambda: Heartbeat.objects.using(using).filter(publishers__default__state="crashed").exists())
        status = read_status(using)
        assert (crashes(using), status.verdict.code, status.level) == (1, "crashed", Level.WARNING)
        assert relay._state.service.idle_reason == "Publisher 'default': a worker crashed 1 time"


@pytest.mark.parametrize("using", LOCKING)
def test_an_outage_is_reported_with_its_reason_and_its_beginning(using: str, settings: Any):
    url = "amqp://guest:guest@127.0.0.1:1/%2F"
    backend = "django_outbox.brokers.rabbitmq.RabbitMQPublisher"
    settings.OUTBOX = {"PUBLISHERS": {"default": {"BACKEND": backend, "OPTIONS": {"url": url}}}}
    put(1, using)
    with running_relay(using=using, limits=OFTEN):
        eventually(lambda: Heartbeat.objects.using(using).exclude(publishers__default__reason="").exists())
        eventually(lambda: read_status(using).publishers[0].outage)
        (publisher,) = read_status(using).publishers
        assert publisher.breaker in ("open", "half-open")
        assert publisher.outage is not None
        assert read_status(using).verdict.code == "unavailable"
