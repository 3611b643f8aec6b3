"""A database that hangs: its kernel acknowledges every packet, so that no timeout of the driver ends the wait."""

import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.conf import get_settings
from django_outbox.relay.sources import TableSource
from django_outbox.relay.watchdog import DatabaseCalls
from django_outbox.stores import Settlement
from tests.conftest import ALIASES, LOCKING
from tests.support.messages import put
from tests.support.proxies import Proxies, Proxy
from tests.support.publishers import SCRIPTED
from tests.support.relay_threads import QUICK, running_relay
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

WATCHFUL = replace(QUICK, watch_interval=0.05, hang_patience=0.3)


@pytest.fixture(params=LOCKING)
def using(request: pytest.FixtureRequest) -> str:
    alias: str = request.param
    return alias


@pytest.fixture
def proxy(using: str, transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that new connections to the database go through; the test keeps its own."""
    connections[using].ensure_connection()
    settings: dict[str, Any] = connections.settings[using]
    with Proxies() as proxies:
        proxy = proxies.open(int(settings["PORT"]))
        monkeypatch.setitem(settings, "HOST", "127.0.0.1")
        monkeypatch.setitem(settings, "PORT", proxy.port)
        monkeypatch.setitem(settings, "OPTIONS", {**settings["OPTIONS"], "connect_timeout": 2})
        yield proxy


@pytest.mark.parametrize("check_after", [0.0, 0.5])
def test_a_database_that_hangs_is_reported_and_given_up(
    using: str, proxy: Proxy, check_after: float, caplog: pytest.LogCaptureFixture
):
    """It hangs in a claim, or while an idle worker checks its connection."""
    limits = replace(WATCHFUL, check_connection_after=check_after)
    caplog.set_level(logging.INFO, "django_outbox")
    with (
        override_settings(OUTBOX={"PUBLISHERS": {"default": SCRIPTED}, "CLAIM_TIMEOUT": 2, "NOTIFY": False}),
        running_relay(using=using, poll_interval=0.05, limits=limits) as relay,
    ):
        put(1, using)
        eventually(lambda: OutboxMessage.objects.using(using).processed().count() == 1)
        proxy.go_silent()
        eventually(lambda: any("has not responded for" in outage.reason for outage in relay.outages))
        eventually(lambda: "has taken longer than CLAIM_TIMEOUT = 2 s: this process was stopped, or" in caplog.text)
        proxy.speak()
        put(1, using)
        eventually(lambda: OutboxMessage.objects.using(using).processed().count() == 2)
        eventually(lambda: not relay.outages)
    assert f"Database {using!r} is unavailable: it has not responded for" in caplog.text
    assert f"Database {using!r} is available again" in caplog.text


def test_only_the_database_calls_of_a_claim_are_watched(using: str):
    """A publisher may take its time, and a connection that is publishing must not be closed."""
    put(1, using)
    now = iter(range(1000))
    calls = DatabaseCalls(lambda: float(next(now)))
    source = TableSource(using, "default", get_settings(), calls=calls)
    with source.claim(10) as claim:
        assert calls.seconds_without_answer == 0
        calls.end_overdue()
        source.settle(claim, Settlement(processed=[message.id for message in claim.messages]))
        assert calls.seconds_without_answer == 0
    assert OutboxMessage.objects.using(using).processed().count() == 1
    with calls.watch(connections[using], 5):
        assert calls.seconds_without_answer == 1
    assert calls.seconds_without_answer == 0


def test_a_call_that_hangs_alone_is_no_outage(using: str):
    """Another worker would report its end at once, and so on with each of its claims."""
    times = iter([0.0, 10.0, 11.0, 15.0, 40.0])
    calls = DatabaseCalls(lambda: next(times))
    with calls.watch(connections[using], 60):
        with calls.watch(connections[using], 60):
            pass
        assert calls.seconds_without_answer == 4


def test_another_connection_with_the_descriptor_of_one_that_ended_is_left_alone(using: str):
    (other, peer), calls = socket.socketpair(), DatabaseCalls(iter([0.0, 100.0, 200.0]).__next__)
    with other, peer, calls.watch(connections[using], 60):
        descriptor = connections[using].connection.fileno()
        kept = os.dup(descriptor)
        os.dup2(other.fileno(), descriptor)
        calls.end_overdue()
        os.dup2(kept, descriptor)
        os.close(kept)
        assert other.send(b"x") == 1
