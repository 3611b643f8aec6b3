"""`OUTBOX["ROUTES"]`: a message has one row for each publisher of the first pattern that matches its type."""

import datetime
import uuid
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox import OutboxMessage, enqueue, enqueue_many
from tests.conftest import ALIASES
from tests.support.messages import count

MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
OUTBOX = {
    "PUBLISHERS": {"default": MEMORY, "audit": MEMORY, "search": MEMORY},
    "ROUTES": {"order.paid": ["search"], "order.*": ["audit", "default"], "hidden.*": ["audit"]},
}
pytestmark = pytest.mark.django_db(databases=ALIASES)


@pytest.fixture(autouse=True)
def _routes():
    with override_settings(OUTBOX=OUTBOX):
        yield


def rows(using: str, *fields: str) -> list[Any]:
    return list(OutboxMessage.objects.using(using).order_by("pk").values_list(*fields))


class TestOneMessage:
    def test_a_message_has_a_row_for_each_publisher_with_the_same_id(self, using: str):
        later = datetime.datetime(2100, 1, 1, tzinfo=datetime.timezone.utc)
        with transaction.atomic(using=using):
            message = enqueue(
                "order.created", {"id": 1}, key=7, topic="t", headers={"a": 1}, available_at=later, using=using
            )
        fields = ("message_id", "type", "payload", "key", "topic", "headers", "partition", "blocks_key", "available_at")
        first, second = rows(using, *fields)
        assert first == second
        assert rows(using, "publisher") == [("audit",), ("default",)]
        assert (message.publisher, message.message_id) == ("audit", first[0])
        stored = OutboxMessage.objects.using(using).get(publisher="audit")
        assert (message.pk, message.available_at, message.occurred_at) == (stored.pk, later, stored.occurred_at)

    @pytest.mark.parametrize(
        ("type", "expected"),
        [
            ("order.paid", ["search"]),
            ("order.x.y", ["audit", "default"]),
            ("hidden.a", ["audit"]),
            ("Order.a", ["default"]),
            ("other", ["default"]),
        ],
    )
    def test_the_first_pattern_that_matches_applies_and_otherwise_the_default(
        self, using: str, type: str, expected: list[str]
    ):
        with transaction.atomic(using=using):
            enqueue(type, 1, using=using)
            enqueue_many([OutboxMessage(type=type, payload=2)], using=using)
        assert rows(using, "publisher") == [(alias,) for alias in expected * 2]

    def test_an_explicit_publisher_takes_precedence(self, using: str):
        with transaction.atomic(using=using):
            enqueue("order.created", 1, publisher="default", using=using)
            enqueue("order.created", 1, publisher="search", using=using, message_id=uuid.uuid4())
            enqueue_many(
                [
                    OutboxMessage(type="order.created", payload=1, publisher="default"),
                    OutboxMessage(type="order.created", payload=1, publisher="search"),
                ],
                using=using,
            )
        assert rows(using, "publisher") == [("default",), ("search",)] * 2

    def test_all_rows_are_written_with_one_insert(self, using: str):
        with transaction.atomic(using=using):
            for id in (None, uuid.uuid4()):
                with CaptureQueriesContext(connections[using]) as queries:
                    enqueue("order.created", 1, using=using, message_id=id)
                inserts = [query for query in queries if query["sql"].startswith("INSERT")]
                assert len(inserts) == 1
            with CaptureQueriesContext(connections[using]) as queries:
                enqueue_many([OutboxMessage(type="order.created", payload=n) for n in range(5)], using=using)
            assert len([query for query in queries if query["sql"].startswith("INSERT")]) == 1
        assert count(using) == 14


class TestIdempotency:
    @pytest.mark.parametrize("known", [["audit"], ["default"], ["audit", "default"], []])
    def test_only_the_missing_rows_are_written(self, using: str, known: list[str]):
        id = uuid.uuid4()
        with transaction.atomic(using=using):
            for alias in known:
                enqueue("order.created", "first", publisher=alias, message_id=id, using=using)
            message = enqueue("order.created", "second", message_id=id, using=using)
        payloads = dict(rows(using, "publisher", "payload"))
        assert payloads == {alias: "first" if alias in known else "second" for alias in ("audit", "default")}
        assert (message.publisher, message.payload) == ("audit", payloads["audit"])
        assert message.pk == OutboxMessage.objects.using(using).get(publisher="audit").pk
