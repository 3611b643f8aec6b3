"""Python values in a payload, and the JSON that consumers see: the table in docs/reference/messages.md."""

import datetime
import decimal
import json
from typing import Any

import pytest
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections, models, transaction
from django.http import QueryDict
from django.utils import translation
from django.utils.datastructures import MultiValueDict
from django.utils.translation import gettext_lazy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_outbox import InvalidMessage, OutboxMessage, enqueue
from tests.conftest import ALIASES

pytestmark = pytest.mark.django_db(databases=ALIASES)

UTC = datetime.timezone.utc


class Colour(models.TextChoices):
    RED = "red"


class Size(models.IntegerChoices):
    SMALL = 1


VALUES: list[tuple[Any, str]] = [
    ({"a": [1, 2.5, True, None, "é"]}, '{"a": [1, 2.5, true, null, "é"]}'),
    (datetime.datetime(2026, 5, 1, 8, 30, 0, 123456, UTC), '"2026-05-01T08:30:00.123Z"'),
    (datetime.datetime(2026, 5, 1, 8, 30, tzinfo=UTC), '"2026-05-01T08:30:00Z"'),
    (datetime.datetime(2026, 5, 1, 8, 30, 0, 123456, UTC).isoformat(), '"2026-05-01T08:30:00.123456+00:00"'),
    (gettext_lazy("January"), '"Januar"'),
    ([Colour.RED, Size.SMALL], '["red", 1]'),
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=[expected for _, expected in VALUES])
def test_a_payload_becomes_this_json(using: str, value: Any, expected: str):
    with translation.override("de"), transaction.atomic(using=using):
        enqueue("order.created", {"value": value}, headers={"value": value}, using=using)
    message = OutboxMessage.objects.using(using).get()
    assert message.payload == message.headers == {"value": json.loads(expected)}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({Size.SMALL: 1, "1": 2}, 'JSON writes as "1"'),
        (
            QueryDict("a=1&a=2"),
            "is a QueryDict, of which JSON keeps only the last value of each key. Pass dict(value.l",
        ),
        (MultiValueDict({"a": [1, 2]}), "is a MultiValueDict"),
    ],
)
def test_values_of_which_json_would_lose_a_part_are_refused(using: str, value: Any, problem: str):
    for field, payload, headers in (
        ("payload", value, {}),
        ('payload["a"]', {"a": value}, {}),
        ('headers["a"]', 1, {"a": value}),
    ):
        with pytest.raises(InvalidMessage) as info:
            enqueue("order.created", payload, headers=headers, using=using, require_transaction=False)
        assert str(info.value).startswith(f"{field}: ")
        assert problem in str(info.value)


@pytest.mark.parametrize(("value", "expected"), [(QueryDict("a=1&b="), {"a": "1", "b": ""}), (QueryDict(""), {})])
def test_a_querydict_with_one_value_of_each_key_is_accepted(value: Any, expected: Any):
    with transaction.atomic():
        enqueue("order.created", value)
        enqueue("order.created", {"form": value}, headers={"form": value})
    first, second = OutboxMessage.objects.order_by("id")
    assert first.payload == expected
    assert second.payload == second.headers == {"form": expected}


class Collision(Exception):
    pass


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise Collision
    return dict(pairs)


def as_in_postgresql(text: str) -> float:
    value = float(text)
    return int(decimal.Decimal(text)) if abs(value) >= 1e16 else value or 0.0


def as_stored(value: Any, using: str) -> Any:
    """Return the JSON of a value as the database returns it, or raise Collision if a name is there twice."""
    read_float = as_in_postgresql if connections[using].vendor == "postgresql" else float
    text = json.dumps(value, cls=DjangoJSONEncoder)
    return json.loads(text, object_pairs_hook=unique, parse_float=read_float)


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
zones = st.timezones() | st.integers(-1000, 1000).map(lambda n: datetime.timezone(datetime.timedelta(minutes=n)))
keys = text | st.sampled_from([0, 1, "0", "1", "1.5", 1.5, None, "null", True, "true", "1e+22", 1e22]) | st.integers()
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.dates()
    | st.times()
    | st.datetimes(timezones=st.just(UTC) | zones)
    | st.timedeltas(),
    lambda children: st.lists(children) | st.tuples(children, children) | st.dictionaries(keys, children),
    max_leaves=10,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=values)
@example([1e22, -0.0, 0.0, 1e16, 1e15, -1.5e300, 5e-324, 1e-7, 123456789.123456789])
@example({"a1": {"1": 1, 2: 2}, "true": 1, False: 2})
@example([{1: 1, "1": 2}])
@example(["9" * 400, "\\u0000", {"\\u0000": "\\\\u0000"}, "\N{PILE OF POO}", "x" * 200_000])
def test_any_payload_arrives_as_json_or_is_refused(using: str, payload: Any):
    try:
        expected = as_stored(payload, using)
    except Collision:
        with transaction.atomic(using=using), pytest.raises(InvalidMessage):
            enqueue("order.created", payload, using=using)
        return
    with transaction.atomic(using=using):
        message = enqueue("order.created", payload, using=using)
    message.refresh_from_db()
    # As text, True differs from 1, 1 from 1.0 and 0.0 from -0.0.
    assert json.dumps(message.payload, sort_keys=True) == json.dumps(expected, sort_keys=True)
