"""Python values in a payload, and the JSON that consumers see: the table in docs/reference/messages.md."""

import datetime
import decimal
import json
import uuid
from typing import Any

import pytest
from django.db import models, transaction
from django.utils import translation
from django.utils.translation import gettext_lazy

from django_outbox import OutboxMessage, enqueue
from tests.conftest import ALIASES

pytestmark = pytest.mark.django_db(databases=ALIASES)

UTC = datetime.timezone.utc


class Colour(models.TextChoices):
    RED = "red"


class Size(models.IntegerChoices):
    SMALL = 1


VALUES: list[tuple[Any, str]] = [
    ({"a": [1, 2.5, True, None, "é"]}, '{"a": [1, 2.5, true, null, "é"]}'),
    ((1, 2), "[1, 2]"),
    ({7: "a", None: 1, True: 2, 1.5: 3}, '{"7": "a", "null": 1, "true": 2, "1.5": 3}'),
    (decimal.Decimal("9.50"), '"9.50"'),
    (datetime.datetime(2026, 5, 1, 8, 30, 0, 123456, UTC), '"2026-05-01T08:30:00.123Z"'),
    (datetime.datetime(2026, 5, 1, 8, 30, tzinfo=UTC), '"2026-05-01T08:30:00Z"'),
    (datetime.datetime(2026, 5, 1, 8, 30, 0, 123456, UTC).isoformat(), '"2026-05-01T08:30:00.123456+00:00"'),
    (datetime.date(2026, 5, 1), '"2026-05-01"'),
    (datetime.time(8, 30, 0, 123456), '"08:30:00.123"'),
    (datetime.timedelta(days=1, hours=2), '"P1DT02H00M00S"'),
    (uuid.UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
    (gettext_lazy("January"), '"Januar"'),
    ([Colour.RED, Size.SMALL], '["red", 1]'),
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=[expected for _, expected in VALUES])
def test_a_payload_becomes_this_json(using: str, value: Any, expected: str):
    with translation.override("de"), transaction.atomic(using=using):
        enqueue("order.created", {"value": value}, headers={"value": value}, using=using)
    message = OutboxMessage.objects.using(using).get()
    assert message.payload == message.headers == {"value": json.loads(expected)}
