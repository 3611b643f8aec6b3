"""The test helpers while the clock of Python is frozen: the database's clock decides what is due."""

import datetime
from contextlib import AbstractContextManager
from typing import Any

import pytest
import time_machine
from django.db import transaction
from django.utils import timezone
from freezegun import freeze_time

from django_outbox import enqueue
from django_outbox.pytest_plugin import outbox  # noqa: F401 - a fixture
from django_outbox.relay import Relay
from django_outbox.testing import Outbox

FROZEN: dict[str, Any] = {
    "freezegun": freeze_time,
    "time-machine": lambda moment: time_machine.travel(moment, tick=False),
}


@pytest.mark.parametrize("year", [2001, 2101])
@pytest.mark.parametrize("library", FROZEN)
def test_messages_are_delivered_while_the_clock_is_frozen(
    outbox: Outbox,  # noqa: F811
    library: str,
    year: int,
):
    moment = datetime.datetime(year, 1, 1, tzinfo=datetime.timezone.utc)
    frozen: AbstractContextManager[Any] = FROZEN[library](moment)
    with frozen:
        with transaction.atomic():
            ids = [enqueue("order.created", {"id": id}).message_id for id in range(3)]
            enqueue("order.reminded", {}, delay=60)
        outbox.assert_enqueued("order.created", id=0)
        assert ids == sorted(set(ids))
        # A delay is added to the database's clock.
        assert [message.type for message in outbox.drain(max_seconds=5).processed] == ["order.created"] * 3
        assert [message.type for message in outbox.drain(delayed=True).processed] == ["order.reminded"]
        with transaction.atomic():
            enqueue("order.expired", {}, available_at=timezone.now())
        is_due = year < 2050
        assert bool(outbox.drain().processed) == is_due
        assert bool(outbox.drain(delayed=True).processed) != is_due


@pytest.mark.django_db
@pytest.mark.parametrize("library", FROZEN)
def test_a_relay_waits_while_the_clock_is_frozen(library: str):
    with FROZEN[library](datetime.datetime(2101, 1, 1, tzinfo=datetime.timezone.utc)), Relay() as relay:
        assert not relay._state.wake_ups.wait("default", frozenset(["default"]), 0.01)
