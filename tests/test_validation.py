"""What `enqueue` refuses: each bad input fails at the call, names its field and the limit, and asks no database.

No test here may use a database, so that a single query would fail it; only the last ones do, to see that a refusal
leaves the transaction usable.
"""

import datetime
import decimal
import sys
import uuid
from typing import Any

import pytest
from django.db import connections, models, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_outbox import InvalidMessage, OutboxMessage, enqueue, enqueue_many
from tests.conftest import ALIASES

NOW = timezone.now()
HUGE = 10**5000
MEMORY = {"default": {"BACKEND": "django_outbox.publishers.memory.MemoryPublisher"}}


def kind_of(value: object) -> str:
    return type(value).__name__


class NoOffset(datetime.tzinfo):
    def utcoffset(self, when: datetime.datetime | None) -> None:
        return None

    tzname = dst = utcoffset


def nested(depth: int, kind: type = list) -> Any:
    value: Any = {} if kind is dict else kind()
    for _ in range(depth - 1):
        value = {"a": value} if kind is dict else kind([value])
    return value


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def refused(field: str, *limits: str, using: str = "default", **arguments: Any) -> None:
    arguments = {"type": "order.created", "payload": 1, **arguments}
    with pytest.raises(InvalidMessage) as info:
        enqueue(**arguments, using=using, require_transaction=False)
    assert info.value.field == field
    assert str(info.value).startswith(f"{field}: ")
    assert len(str(info.value)) < 500
    for limit in limits:
        assert limit in str(info.value)


@pytest.mark.parametrize("field", ["type", "key", "topic"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "NoneType"),
        (3, "int"),
        (b"order", "bytes"),
        (["order"], "list"),
        ("x" * 256, "256 bytes"),
        ("é" * 128, "256 bytes"),
        ("x" * 252 + "\N{PILE OF POO}", "256 bytes"),
        ("x" * 10**6, "1,000,000 bytes"),
        ("a\x00b", "NUL"),
        ("a\ud800b", "surrogate"),
    ],
)
def test_a_name_must_be_text_of_at_most_255_bytes(using: str, field: str, value: Any, problem: str):
    refused(field, problem, using=using, **{field: value})
    if "bytes" in problem and problem != "bytes":
        refused(field, "limit is 255", using=using, **{field: value})


def test_a_blank_type_is_refused():
    refused("type", "must not be blank", type="")


@pytest.mark.parametrize("publisher", ["other", "", None, 3, [], HUGE, "x" * 10_000, "a\ud800"], ids=kind_of)
def test_an_unknown_publisher_is_refused_with_the_known_ones(publisher: Any):
    refused("publisher", "OUTBOX['PUBLISHERS']", "configured: default", publisher=publisher)


BAD_VALUES = [
    (float("nan"), "not JSON"),
    (float("-inf"), "not JSON"),
    (1e400, "not JSON"),
    (decimal.Decimal("NaN"), "not a number"),
    (decimal.Decimal("-Infinity"), "not a number"),
    (object(), "not JSON"),
    ({1, 2}, "not JSON"),
    (b"bytes", "not JSON"),
    (iter([1]), "not JSON"),
    (models.F("id"), "not JSON"),
    (models.Value(None), "not JSON"),
    ({("a", "b"): 1}, "not JSON"),
    ({uuid.UUID(int=1): 1}, "not JSON"),
    (datetime.time(1, tzinfo=datetime.timezone.utc), "not JSON"),
    (HUGE, "not JSON"),
    (10**308, "308 digits"),
    (-(10**308), "308 digits"),
    ("a\x00b", "NUL"),
    ("\\\x00", "NUL"),
    ({"a\x00b": 1}, "NUL"),
    ("a\ud800b", "surrogate"),
    ({"\udfff": 1}, "surrogate"),
    (circular(), "not JSON"),
]


@pytest.mark.parametrize(("value", "problem"), BAD_VALUES, ids=range(len(BAD_VALUES)))
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"a": [(v,)]}], ids=["bare", "deep inside"])
def test_what_is_no_json_is_refused(using: str, value: Any, problem: str, wrap: Any):
    refused("payload", problem, using=using, payload=wrap(value))
    refused("headers", problem, using=using, headers={"name": wrap(value)})


def test_a_very_long_integer_is_refused_where_python_would_write_it_out():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        refused("payload", "308 digits", payload=[10**200_000])
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("kind", [list, tuple, dict])
@pytest.mark.parametrize("depth", ["one more", 900, 5_000, 100_000])
def test_what_is_nested_too_deeply_is_refused(using: str, kind: type, depth: Any):
    limit = 31 if using == "mariadb" else 500
    depth = limit + 1 if depth == "one more" else depth
    value = nested(depth, kind)
    refused("payload", f"the limit is {limit} levels", using=using, payload=value)
    refused("headers", f"the limit is {limit} levels", using=using, headers={"a": value})
    while value:  # Python itself cannot always take such a value apart in one go.
        value = next(iter(value.values() if isinstance(value, dict) else value))


def test_size_is_counted_in_bytes_and_the_error_names_the_setting():
    with override_settings(OUTBOX={"PUBLISHERS": MEMORY, "MAX_PAYLOAD_BYTES": 100}):
        refused("payload", "101 bytes", "OUTBOX['MAX_PAYLOAD_BYTES'] is 100", payload="x" * 99)
        refused("payload", "102 bytes", payload="\N{PILE OF POO}" * 25)
    refused("payload", "1,048,576", payload="x" * 2**20)


@pytest.mark.parametrize(
    "headers", [[], [("a", 1)], "a", 0, False, (), {1: 2}, {"": 1}, {"x" * 256: 1}, {HUGE: 1}], ids=kind_of
)
def test_headers_must_be_a_dict_with_short_names(headers: Any):
    refused("headers", headers=headers)


def test_headers_have_a_limit_of_64_kib():
    refused("headers", "65,545 bytes", "65,536", headers={"a": "x" * 65_536})


@pytest.mark.parametrize("message_id", [3, HUGE, b"", "x", "", [], 1.5, "x" * 10_000], ids=kind_of)
def test_a_message_id_must_be_a_uuid(message_id: Any):
    refused("message_id", "no UUID", message_id=message_id)


@pytest.mark.parametrize(
    ("available_at", "problem"),
    [
        (NOW.replace(tzinfo=None), "aware"),
        (NOW.replace(tzinfo=NoOffset()), "aware"),
        (NOW.date(), "date"),
        ("2030-01-01", "str"),
        (5, "int"),
        (models.F("occurred_at"), "F"),
        (datetime.datetime.max.replace(tzinfo=datetime.timezone(-datetime.timedelta(hours=5))), "9999"),
        (datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=5))), "years 1"),
    ],
)
def test_available_at_must_be_an_aware_time(available_at: Any, problem: str):
    refused("available_at", problem, available_at=available_at)


@pytest.mark.parametrize(
    "delay",
    [-1, -0.1, float("nan"), float("inf"), 1e300, HUGE, True, "5", decimal.Decimal(5), datetime.timedelta(-1),
     datetime.timedelta(3654)],
    ids=kind_of,
)  # fmt: skip
def test_a_delay_must_be_a_length_of_time_up_to_ten_years(delay: Any):
    refused("delay", delay=delay)


def test_delay_and_available_at_exclude_each_other():
    refused("delay", "not both", delay=1, available_at=NOW)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("message", {"type": "a", "payload": 1}),
        ("message", None),
        ("type", OutboxMessage(payload=1)),
        ("id", OutboxMessage(id=1, type="a", payload=1)),
        ("attempts", OutboxMessage(type="a", payload=1, attempts=-1)),
        ("error", OutboxMessage(type="a", payload=1, error="\x00")),
        ("processed_at", OutboxMessage(type="a", payload=1, processed_at=NOW)),
        ("failed_at", OutboxMessage(type="a", payload=1, failed_at=NOW)),
        ("available_at", OutboxMessage(type="a", payload=1, available_at=None)),
        ("available_at", OutboxMessage(type="a", payload=1, available_at=NOW.replace(tzinfo=None))),
        ("occurred_at", OutboxMessage(type="a", payload=1, occurred_at=NOW.replace(tzinfo=None))),
        ("occurred_at", OutboxMessage(type="a", payload=1, occurred_at="yesterday")),
        ("message_id", OutboxMessage(type="a", payload=1, message_id="x")),
        ("message_id", OutboxMessage(type="a", payload=1, message_id=None)),  # type: ignore[misc]
        ("headers", OutboxMessage(type="a", payload=1, headers=None)),
        ("publisher", OutboxMessage(type="a", payload=1, publisher="x")),
        ("payload", OutboxMessage(type="a", payload={1})),
    ],
)
def test_enqueue_many_tells_which_message_is_wrong(field: str, message: Any):
    with pytest.raises(InvalidMessage) as info:
        enqueue_many([OutboxMessage(type="a", payload=1), message], require_transaction=False)
    assert info.value.field == f"messages[1].{field}"


@pytest.mark.django_db(databases=ALIASES)
def test_after_a_refusal_the_transaction_goes_on(using: str):
    with transaction.atomic(using=using):
        with CaptureQueriesContext(connections[using]) as queries:
            refused("payload", using=using, payload="\x00")
            with pytest.raises(InvalidMessage):
                enqueue_many([OutboxMessage(type="a", payload=1), OutboxMessage(type="", payload=1)], using=using)
        assert len(queries) == 0
        enqueue("order.created", 1, using=using)
    assert OutboxMessage.objects.using(using).count() == 1


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_the_deepest_allowed_nesting_is_stored(using: str, kind: type):
    value = nested(31 if using == "mariadb" else 500, kind)
    with transaction.atomic(using=using):
        message = enqueue("order.created", value, headers={"a": nested(30, kind)}, using=using)
    message.refresh_from_db()


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize(
    "payload", [10**308 - 1, "9" * 400, 1e16, 5e-324, "\\u0000", {"\\u0000": "\\\\u0000"}, None], ids=kind_of
)
def test_what_only_looks_wrong_is_stored(using: str, payload: Any):
    with transaction.atomic(using=using):
        message = enqueue("order.created", payload, using=using)
    message.refresh_from_db()
    assert message.payload == payload


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize("name", ["x" * 255, "\N{PILE OF POO}" * 63, "\\u0000", 'it\'s "quoted" %s {} ;--\n'])
def test_any_text_of_255_bytes_is_a_name(using: str, name: str):
    with transaction.atomic(using=using):
        message = enqueue(name, 1, key=name, topic=name, headers={name: name}, using=using)
    message.refresh_from_db()
    assert (message.type, message.key, message.topic, message.headers) == (name, name, name, {name: name})
