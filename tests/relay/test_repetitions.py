"""Processed messages that an operator delivers again: what is sent, and in which order."""

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_outbox import OutboxMessage
from django_outbox.handlers import handler
from django_outbox.messages import Message
from django_outbox.models import Status
from tests.conftest import ALIASES
from tests.support.effects import HANDLERS, drain, states
from tests.support.messages import ago, put, rows
from tests.support.publishers import SCRIPTED, Script

pytest_plugins = ["tests.support.rabbitmq.fixtures", "tests.support.handlers_fixtures"]
pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

PG = "postgresql"
HEADER = "outbox-redelivered-at"


def requested_at(headers: Any) -> datetime.datetime:
    time = parse_datetime(headers[HEADER])
    assert time is not None
    return time


class TestOnEveryDatabase:
    OUTBOX: dict[str, Any] = {"PUBLISHERS": {"default": SCRIPTED}}

    @pytest.fixture(autouse=True)
    def with_settings(self, scripted: Script) -> Iterator[None]:
        with override_settings(OUTBOX=self.OUTBOX):
            yield

    def test_messages_of_a_key_arrive_again_in_their_order_before_those_that_are_pending(
        self, using: str, scripted: Script
    ):
        ids = put(6, using, keys=1)
        drain(using)
        late = put(2, using, keys=1)
        assert OutboxMessage.objects.using(using).filter(pk__in=[ids[4], ids[1], ids[2], late[0]]).deliver_again() == 3
        drain(using)
        assert scripted.published() == [*ids, ids[1], ids[2], ids[4], *late]
        assert states(using) == [Status.PROCESSED] * 8

    def test_a_message_keeps_its_content_and_gets_the_time_of_the_request(self, using: str):
        (id,) = put(1, using, headers={"größe": [1, {"a": 2**53 + 1}], "x": None})
        drain(using)
        OutboxMessage.objects.using(using).update(dead_lettered_at=ago(days=1))
        before = rows(using)[id]
        for _ in range(2):
            OutboxMessage.objects.using(using).deliver_again()
            message = OutboxMessage.objects.using(using).get()
            assert (message.status, message.attempts, message.dead_lettered_at) == (Status.PENDING, 0, None)
            assert abs(requested_at(message.headers) - timezone.now()) < datetime.timedelta(minutes=1)
            drain(using)
        after = rows(using)[id]
        headers = {name: value for name, value in after["headers"].items() if name != HEADER}
        unchanged = ("message_id", "type", "key", "payload", "occurred_at", "publisher")
        assert [after[name] for name in unchanged] == [before[name] for name in unchanged]
        assert headers == before["headers"]

    def test_messages_in_other_states_are_left_alone(self, using: str):
        cancelled, _ = put(2, using)
        OutboxMessage.objects.using(using).filter(pk=cancelled).cancel()
        before = rows(using)
        assert OutboxMessage.objects.using(using).deliver_again() == 0
        assert rows(using) == before


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("source", ["snapshot", "table"])
def test_messages_of_a_stream_are_moved_to_the_table(source: str, scripted: Script):
    publishers = {"default": {**SCRIPTED, "SOURCE": "snapshot"}}
    with override_settings(OUTBOX={"PUBLISHERS": publishers}):
        ids = put(6, PG, keys=1)
        drain(PG)
        late = put(2, PG, keys=1)
        messages = OutboxMessage.objects.using(PG)
        assert messages.filter(pk__in=[ids[3], ids[1], late[0]]).deliver_again() == 2
        assert messages.pending().filter(xid=None).count() == 2
    publishers["default"]["SOURCE"] = source
    with override_settings(OUTBOX={"PUBLISHERS": publishers}):
        drain(PG)
        assert scripted.published() == [*ids, ids[1], ids[3], *late]
        drain(PG)
        assert len(scripted.published()) == 10


@pytest.mark.usefixtures("handlers")
class TestHandlers:
    OUTBOX: dict[str, Any] = {"PUBLISHERS": {"default": HANDLERS}}

    @pytest.fixture(autouse=True)
    def with_settings(self) -> Iterator[None]:
        with override_settings(OUTBOX=self.OUTBOX):
            yield

    def test_a_handler_runs_again_and_sees_that_it_is_a_repetition(self, using: str):
        seen: list[bool] = []

        @handler("t")
        def handle(payload: Any, message: Message) -> None:
            seen.append(HEADER in message.headers)

        put(1, using)
        drain(using)
        OutboxMessage.objects.using(using).deliver_again()
        drain(using)
        assert seen == [False, True]

    @pytest.mark.parametrize("chosen", ["the original", "the messages of the handlers", "all", "all but one"])
    def test_each_of_several_handlers_runs_once_more(self, using: str, chosen: str):
        ran: list[str] = []

        @handler("t", name="mail")
        def mail(payload: Any, message: Message) -> None:
            ran.append(f"mail {payload}")

        @handler("t", name="bill")
        def bill(payload: Any, message: Message) -> None:
            ran.append(f"bill {payload}")

        put(2, using, keys=1)
        drain(using)
        expected = ["bill 0", "bill 1", "mail 0", "mail 1"]
        assert sorted(ran) == expected
        messages = OutboxMessage.objects.using(using)
        originals = messages.filter(topic="")
        if chosen == "all but one":
            # It was purged, or is no longer in the table for another reason.
            messages.filter(topic="bill").delete()
        selected = {"the original": originals, "the messages of the handlers": messages.exclude(topic="")}
        selected.get(chosen, messages.all()).deliver_again()
        drain(using)
        drain(using)
        assert sorted(ran) == sorted(2 * expected)
        assert [each for each in ran if each.startswith("mail")] == ["mail 0", "mail 1"] * 2
