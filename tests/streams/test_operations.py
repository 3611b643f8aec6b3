"""An operator holds and cancels messages that wait in a stream, also at the moment in which a relay delivers them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connections
from django.test import Client

from django_outbox import OutboxMessage
from django_outbox.admin import locking
from django_outbox.admin.operations import CANCEL, DELIVER_AGAIN, HOLD, RETRY_NOW, Operation, find_targets
from django_outbox.models import HELD_BY_OPERATOR, OutboxMessageQuerySet, StreamPosition
from django_outbox.monitoring.status import read_status
from tests.conftest import ALIASES
from tests.streams.sources import PG, STREAMED, deliver, drain, new_source
from tests.support.admin.tools import CHANGELIST, apply, url
from tests.support.messages import ago, put, rows
from tests.support.publishers import Script, ScriptedPublisher
from tests.support.routers import ROUTERS

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

OUTBOX = STREAMED


def the(*ids: int) -> OutboxMessageQuerySet:
    return OutboxMessageQuerySet(OutboxMessage, using=PG).filter(pk__in=ids)


def test_a_message_that_is_released_before_its_turn_waits_for_the_earlier_ones_of_its_key(scripted: Script):
    drain()
    ids = put(4, PG, keys=1)
    assert the(ids[2]).hold() == 1
    assert the(ids[2]).retry_now() == 1
    relay = new_source(PG)
    # The stream is not read yet, as behind a backlog.
    relay.stream.next_look, relay.stream.passed = float("inf"), StreamPosition.objects.using(PG).get().passed
    with relay.claim(10) as claim:
        assert claim.messages == []
    assert drain() == 4
    assert scripted.published() == ids


def test_a_cancelled_message_fails_and_its_key_goes_on(scripted: Script):
    drain()
    ids = put(4, PG, keys=1)
    assert the(ids[1]).cancel("by mistake") == 1
    assert drain() == 3
    assert scripted.published() == [ids[0], *ids[2:]]
    row = rows(PG)[ids[1]]
    assert (row["error"], row["error_class"], row["blocks_key"]) == ("by mistake", "outbox.cancelled", False)
    assert the(ids[1]).requeue() == 1
    assert drain() == 1


@pytest.mark.parametrize("listed", [2, 10_000], ids=["within a page", "all at once"])
def test_delivered_messages_are_left_alone(listed: int):
    ids = put(5, PG)
    deliver(new_source(PG, listed=listed), 2)
    assert bool(StreamPosition.objects.using(PG).get().page)
    assert the(*ids).hold() == 3
    assert [id for id, row in rows(PG).items() if row["available_at"] == HELD_BY_OPERATOR] == ids[2:]


def test_messages_of_a_stream_that_no_relay_has_served_can_be_held_in_the_admin(admin_user: User, settings: Any):
    settings.DATABASE_ROUTERS = ROUTERS[PG]
    ids = put(2, PG)
    assert apply(HOLD, ids).changed == 2
    assert drain() == 0


def test_messages_that_a_stream_has_delivered_can_be_delivered_again_in_the_admin(
    admin_user: User, admin_client: Client, settings: Any, scripted: Script
):
    settings.DATABASE_ROUTERS = ROUTERS[PG]
    first, last = put(2, PG, keys=1)
    drain()
    waiting = put(1, PG, keys=1)
    with delivering():
        assert apply(DELIVER_AGAIN, [first, last, *waiting]).changed == 2
    assert scripted.published() == [first, last, *waiting]
    assert drain() == 2
    assert scripted.published()[3:] == [first, last]
    assert find_targets(DELIVER_AGAIN, [first]).targets
    page = admin_client.get(f"{CHANGELIST}?state=streamed").content.decode()
    assert '<option value="deliver_again">' in page


def test_the_command_finds_delivered_messages_of_a_stream_by_the_time_at_which_they_were_enqueued(scripted: Script):
    old, between, new = put(3, PG)
    the(old).update(occurred_at=ago(hours=5))
    the(between).update(xid=None, processed_at=ago(hours=1))
    drain()
    waiting = put(1, PG)
    for filters, chosen in ((["--after", "2h", "--limit", "1"], [between]), (["--all"], [old, new])):
        call_command("outbox_requeue", "--database", PG, "--processed", *filters, stdout=StringIO())
        found = OutboxMessage.objects.using(PG).pending().order_by("pk").values_list("pk", flat=True)
        assert [*found] == chosen
        if chosen == [between]:
            the(between).delete()
    drain()
    assert set(scripted.published()[-3:]) == {old, new, *waiting}


@pytest.mark.parametrize("operation", [HOLD, CANCEL], ids=lambda operation: operation.name)
def test_the_admin_leaves_messages_alone_that_a_relay_keeps_for_long(
    operation: Operation, scripted: Script, monkeypatch: pytest.MonkeyPatch, admin_user: User, settings: Any
):
    settings.DATABASE_ROUTERS = ROUTERS[PG]
    monkeypatch.setattr(locking, "STREAM_PATIENCE", 0.05)
    drain()
    ids = put(3, PG, keys=1)
    assert [target.blocks_key for target in find_targets(operation, ids).targets] == [True] * 3
    assert find_targets(RETRY_NOW, ids).targets == []
    with delivering():
        assert apply(operation, ids).targets == []
    assert scripted.published() == ids
    ids = put(3, PG, keys=1)
    assert apply(operation, ids).changed == 3
    assert drain() == 0


@contextmanager
def delivering() -> Iterator[threading.Event]:
    """Let a relay deliver a batch until the event is set."""
    claimed, go_on = threading.Event(), threading.Event()

    class Slow(ScriptedPublisher):
        def publish(self, messages: Any) -> Any:
            claimed.set()
            assert go_on.wait(60)
            return super().publish(messages)

    with in_thread(lambda: deliver(new_source(PG), 2000, Slow("default"))):
        assert claimed.wait(60)
        try:
            yield go_on
        finally:
            go_on.set()


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[None]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            connections[PG].close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)
    assert not errors
    assert not thread.is_alive()


def test_a_shell_waits_for_the_relay_and_changes_what_it_has_not_delivered(scripted: Script):
    drain()
    ids = put(3, PG, keys=1)
    held: list[int] = []
    with delivering() as go_on:
        more = put(2, PG, keys=1, first=3)
        with in_thread(lambda: held.append(the(*ids, *more).hold())):
            time.sleep(0.3)
            assert held == []
            go_on.set()
    assert held == [2]
    assert scripted.published() == ids
    assert drain() == 0


def test_the_list_and_the_page_of_a_streamed_message_offer_to_hold_and_cancel(admin_client: Client, settings: Any):
    settings.DATABASE_ROUTERS = ROUTERS[PG]
    drain()
    (id,) = put(1, PG)
    names = ("requeue", "discard", "retry_now", "hold", "cancel")
    page = admin_client.get(CHANGELIST, {"state": "streamed"}).content.decode()
    assert [name for name in names if f'value="{name}"' in page] == ["hold", "cancel"]
    page = admin_client.get(url("change", id)).content.decode()
    assert [name for name in names if url(name) in page] == ["hold", "cancel"]


def test_every_statement_runs_with_parameters_that_the_server_binds(scripted: Script):
    connections[PG].close()
    options = {"server_side_binding": True, "prepare_threshold": 0}
    with mock.patch.dict(connections.settings[PG]["OPTIONS"], options):
        ids = put(6, PG, keys=2)
        drain()
        more = put(6, PG, keys=2)
        assert the(more[2]).hold() == 1
        assert the(more[3]).cancel() == 1
        assert read_status(PG).streams[0].waiting.number == 4
        assert drain() == 3
        assert the(more[2]).retry_now() == 1
        assert drain() == 2
    connections[PG].close()
    assert sorted(scripted.published()) == sorted({*ids, *more} - {more[3]})
