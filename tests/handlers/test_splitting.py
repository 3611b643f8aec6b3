"""Several handlers of one type: each gets a separate message, with separate retries and order."""

import json
import random
from collections import defaultdict
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_outbox import OutboxMessage, enqueue
from django_outbox.handlers import handler
from django_outbox.handlers.registry import HandlerRegistry
from django_outbox.messages import Message
from django_outbox.models import Status
from tests.conftest import ALIASES
from tests.support.effects import HANDLERS, deliver_once, drain, drain_all, effects, leave, scratch_handlers, states
from tests.support.messages import put

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]


@pytest.fixture
def using() -> str:
    """What is split does not depend on the database."""
    return "postgresql"


OUTBOX = {"PUBLISHERS": {"default": HANDLERS}}


def test_each_handler_sees_the_original_message(using: str):
    seen: dict[str, tuple[Any, Message]] = {}

    @handler("t", name="one")
    def one(payload: Any, message: Message) -> None:
        seen["one"] = payload, message

    @handler("t", name="two")
    def two(payload: Any, message: Message) -> None:
        seen["two"] = payload, message

    with transaction.atomic(using=using):
        original = enqueue("t", {"id": 7}, key="k" * 250, topic="there", headers={"a": [1]}, using=using)
    drain(using)
    assert seen.keys() == {"one", "two"}
    for payload, message in seen.values():
        assert payload == {"id": 7}
        assert (message.key, message.topic, message.headers) == ("k" * 250, "there", {"a": [1]})
        assert message.message_id == str(original.message_id)
    children = OutboxMessage.objects.using(using).exclude(pk=original.pk)
    assert {child.headers["outbox-handler"]["message_id"] for child in children} == {str(original.message_id)}
    assert {child.occurred_at for child in children} == {original.occurred_at}
    assert len({child.key for child in children} | {original.key}) == 3


@pytest.mark.parametrize("number", ["0.12345678901234567890123", "1e400", "12345678901234567890123"])
@pytest.mark.parametrize("using", ["postgresql"])
def test_the_payload_is_copied_as_it_is_in_the_database(using: str, number: str):
    @handler("t", name="one")
    def one(payload: Any, message: Message) -> None: ...

    @handler("t", name="two")
    def two(payload: Any, message: Message) -> None: ...

    put(1, using)
    sql = "UPDATE django_outbox_outboxmessage SET payload = %s::jsonb"
    with connections[using].cursor() as cursor:
        cursor.execute(sql, [json.dumps({"n": 0}).replace("0", number)])
        drain(using)
        cursor.execute("SELECT DISTINCT payload::text FROM django_outbox_outboxmessage")
        assert len(cursor.fetchall()) == 1
        cursor.execute("SELECT count(*) FROM django_outbox_outboxmessage")
        assert cursor.fetchall() == [(3,)]


def test_a_split_message_that_is_delivered_again_is_not_split_again(using: str):
    @handler("t", name="one")
    def one(payload: Any, message: Message) -> None:
        leave(using, "one")

    @handler("t", name="two")
    def two(payload: Any, message: Message) -> None:
        leave(using, "two")

    (id,) = put(1, using)
    drain(using)
    rows = OutboxMessage.objects.using(using)
    again = rows.filter(pk=id).update(processed_at=None, available_at="2020-01-01 00:00Z")
    assert again == 1
    drain(using)
    assert sorted(effects(using)) == ["one", "two"]
    assert states(using) == [Status.PROCESSED] * 3


@pytest.mark.parametrize("unhandled", ["fail", "skip"])
def test_a_message_of_a_handler_that_is_gone_is_retried_and_then_fails(
    using: str, handlers: HandlerRegistry, unhandled: str
):
    @handler("t", name="one")
    def one(payload: Any, message: Message) -> None: ...

    @handler("t", name="two")
    def two(payload: Any, message: Message) -> None: ...

    put(1, using)
    deliver_once(using)
    entry = {**HANDLERS, "OPTIONS": {"unhandled": unhandled}, "RETRY": {**HANDLERS["RETRY"], "MAX_ATTEMPTS": 2}}
    with scratch_handlers(), override_settings(OUTBOX={"PUBLISHERS": {"default": entry}}):

        @handler("t", name="one")
        def remaining(payload: Any, message: Message) -> None:
            leave(using, payload)

        drain_all(using)
    assert effects(using) == ["0"]
    failed = OutboxMessage.objects.using(using).get(failed_at__isnull=False)
    assert failed.attempts == 2
    assert "no handler named 'two'" in failed.error


TYPES = ("a", "b", "c")


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    served=st.lists(st.sets(st.sampled_from(TYPES), min_size=1), min_size=1, max_size=3),
    sent=st.lists(st.tuples(st.sampled_from(TYPES), st.sampled_from(["", "k", "l"])), max_size=12),
    seed=st.integers(0, 2**32),
)
def test_every_handler_gets_each_message_of_its_types_once_and_each_key_in_order(
    handlers: HandlerRegistry, served: list[set[str]], sent: list[tuple[str, str]], seed: int
):
    got: dict[str, list[tuple[int, str]]] = defaultdict(list)
    rand = random.Random(seed)
    OutboxMessage.objects.all().delete()

    def make(name: str, types: set[str]) -> None:
        @handler(*sorted(types), name=name)
        def note(payload: int, message: Message) -> None:
            if rand.random() < 0.3 and message.attempts < 5:
                raise ValueError("not yet")
            got[name].append((payload, message.key))

    with scratch_handlers():
        for number, types in enumerate(served):
            make(f"h{number}", types)
        for number, (type, key) in enumerate(sent):
            put(1, first=number, type=type, key=key)
        drain_all("default")
    for number, types in enumerate(served):
        expected = [(n, key) for n, (type, key) in enumerate(sent) if type in types]
        calls = got[f"h{number}"]
        assert sorted(calls) == expected
        for key in ("k", "l"):
            in_key = [n for n, each in calls if each == key]
            assert in_key == sorted(in_key)
