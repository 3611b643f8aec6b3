"""`enqueue` refuses each invalid input with an error that names the field and the limit, and sends no query.

Most tests here have no access to a database, so a single query would fail them. Only the last one does, to check
that the transaction remains usable after an error.
"""

import datetime
import decimal
import json
import uuid
from typing import Any

import pytest
from django.db import connections, models, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import assume, example, given
from hypothesis import strategies as st

from django_outbox import InvalidMessage, OutboxMessage, enqueue, enqueue_many
from django_outbox.enqueueing.validation import check_json
from django_outbox.messages import MAX_HEADERS_DEPTH
from django_outbox.stores.dialect import Dialect
from tests.conftest import ALIASES, MYSQL_AND_MARIADB
from tests.support.json_values import nested

NOW = timezone.now()
HUGE = 10**5000
MEMORY = {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}


def kind_of(value: object) -> str:
    return type(value).__name__


class NoOffset(datetime.tzinfo):
    def utcoffset(self, when: datetime.datetime | None) -> None:
        return None

    tzname = dst = utcoffset


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def refused(field: str, *limits: str, using: str = "default", **arguments: Any) -> None:
    arguments = {"type": "order.created", "payload": 1, **arguments}
    with pytest.raises(InvalidMessage) as info:
        enqueue(**arguments, using=using, require_transaction=False)
    assert info.value.field == field
    assert str(info.value) == f"{field}{info.value.path}: {info.value.problem}"
    assert len(str(info.value)) < 600
    for limit in limits:
        assert limit in str(info.value)


@pytest.mark.parametrize("field", ["type", "key", "topic"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "NoneType"),
        (True, "bool"),
        (1.5, "float"),
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
def test_a_type_topic_or_key_must_be_a_string_of_at_most_255_bytes(field: str, value: Any, problem: str):
    refused(field, problem, **{field: value})
    if "bytes" in problem and problem != "bytes":
        refused(field, "limit is 255", **{field: value})


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize("character", ["\n", "\r", "\t", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u2029"], ids=ord)
def test_only_a_key_may_have_control_characters(using: str, character: str):
    text = f"a{character}b"
    for field in ("type", "topic"):
        refused(field, f"control character U+{ord(character):04X}", "Remove it", using=using, **{field: text})
    enqueue("a b\xa0\u202ec", 1, key=text, using=using, require_transaction=False)
    assert OutboxMessage.objects.using(using).get().key == text


@pytest.mark.parametrize("key", [10**255, -(10**255), HUGE], ids=["long", "negative", "huge"])
def test_an_integer_that_is_too_long_for_a_key_is_refused(key: int):
    refused("key", "255", key=key)


def test_a_blank_type_is_refused():
    refused("type", "must not be blank", type="")


@pytest.mark.parametrize("publisher", ["other", "", 3, [], HUGE, "x" * 10_000, "a\ud800"], ids=kind_of)
def test_an_unknown_publisher_is_refused_and_the_error_lists_the_configured_publishers(publisher: Any):
    refused("publisher", "OUTBOX['PUBLISHERS']", "configured: default", publisher=publisher)


NAIVE = datetime.datetime(2026, 5, 1, 8, 30)  # noqa: DTZ001

BAD_VALUES = [
    (float("nan"), "not JSON"),
    (float("-inf"), "not JSON"),
    (decimal.Decimal("NaN"), "not a finite number"),
    (OutboxMessage(type="a"), "Pass dicts, lists, strings, finite numbers"),
    ({1, 2}, "not JSON"),
    (b"bytes", "not JSON"),
    (models.F("id"), "not JSON"),
    (datetime.time(1, tzinfo=datetime.timezone.utc), "not JSON"),
    (NAIVE, "without a time zone"),
    (HUGE, "308 digits"),
    (10**308, "308 digits"),
    ("a\x00b", "NUL"),
    ("\\\x00", "NUL"),
    ("a\ud800b", "surrogate"),
    (circular(), "contains itself"),
]


@pytest.mark.parametrize(("value", "problem"), BAD_VALUES, ids=range(len(BAD_VALUES)))
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"a": [(v,)]}], ids=["bare", "deep inside"])
def test_a_payload_or_header_that_is_not_json_is_refused(value: Any, problem: str, wrap: Any):
    path = "" if wrap(1) == 1 else '["a"][0][0]'
    for using in ALIASES:
        refused("payload", problem, f"payload{path}", using=using, payload=wrap(value))
        refused("headers", problem, f'headers["name"]{path}', using=using, headers={"name": wrap(value)})


@pytest.mark.parametrize("key", ["a\x00b", "a\ud800", (1, 2), HUGE, float("nan"), uuid.UUID(int=1)], ids=range(6))
def test_a_key_that_is_not_json_is_refused_with_the_path_of_its_object(key: Any):
    refused("payload", 'payload["a"][1]: ', "key", payload={"a": [1, {"b": 1, key: 1}]})


def test_a_long_path_is_shortened_and_has_no_line_breaks():
    refused("payload", '["a\\nb"]', payload={"a\nb": {1}})
    refused("payload", "…", payload={"x" * 100: {"y" * 1000: {"z" * 50: {"\N{PILE OF POO}" * 50: {1}}}}})


class SmallIntegers(Dialect):
    """The limits of MySQL."""

    json_integers = range(-(2**63), 2**64)
    max_json_key_bytes = 65_535


def test_an_integer_that_the_database_would_round_is_refused():
    dialect = SmallIntegers(connections["default"])
    right = [2**64 - 1, -(2**63), "18446744073709551616", 1.8446744073709552e19, {"9" * 30: 0.30000000000000004}]
    check_json("payload", right, dialect)
    for wrong in (2**64, -(2**63) - 1, 10**307):
        with pytest.raises(InvalidMessage, match="would convert to a floating-point number") as info:
            check_json("payload", {"a": [*right, wrong]}, dialect)
        assert info.value.path == '["a"][5]'
        assert "-9223372036854775808 and 18446744073709551615" in str(info.value)


NUMBERS = ["1", "0", "-", ".", "e", "E", "+", "99", "9" * 18, "9" * 19, "9" * 20]
OTHERS = ["[", "]", "{", "}", ",", '"', '"a":', "null", "x", "é", " ", "\\", "\\n", "\\u0000", "\\ud800"]
PIECES = st.sampled_from([*NUMBERS, *OTHERS])
FRAMES = st.sampled_from(["{}", "[{}]", '"{}"', '{{"a":{}}}', "[[[{}]]]"])


class SmallValues(SmallIntegers):
    max_json_depth = 3
    max_json_key_bytes = 40


@given(pieces=st.lists(PIECES, min_size=1, max_size=8), frame=FRAMES)
def test_the_source_of_a_value_makes_no_invalid_value_valid(pieces: list[str], frame: str):
    source = frame.format("".join(pieces))
    try:
        value = json.loads(source)
    except ValueError:
        return
    assume("inf" not in repr(value))
    dialect = SmallValues(connections["default"])
    problems = []
    for given_source in ("", source):
        try:
            check_json("payload", value, dialect, given_source)
            problems.append("")
        except InvalidMessage as error:
            problems.append(str(error))
    assert problems[0] == problems[1]


CONVERTED = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(key=CONVERTED, other=CONVERTED)
@example(key=-1.5e-300, other=1e22)
def test_a_key_that_json_writes_as_another_one_is_refused(key: Any, other: Any):
    dialect = SmallIntegers(connections["default"])
    check_json("payload", [{key: 1}, {json.dumps(key): 2, f"a{json.dumps(key)}": 3}], dialect)
    with pytest.raises(InvalidMessage, match="two keys that JSON writes as"):
        check_json("payload", [{other: 1}, {"a": {key: 1, json.dumps(key): 2}}], dialect)


def test_an_object_key_that_is_too_long_for_the_database_is_refused():
    dialect = SmallIntegers(connections["default"])
    check_json("payload", {"x" * 65_535: 1}, dialect)
    with pytest.raises(InvalidMessage, match="65,536 bytes long"):
        check_json("payload", {"a": {"x" * 65_536: 1}}, dialect)


@pytest.mark.parametrize("kind", [list, tuple, dict])
@pytest.mark.parametrize("depth", ["one more", 900, 5_000, 100_000])
def test_a_value_that_is_nested_too_deeply_is_refused(using: str, kind: type, depth: Any):
    limit = 31 if using in MYSQL_AND_MARIADB else 500
    depth = limit + 1 if depth == "one more" else depth
    value = nested(depth, kind)
    refused("payload", f"the limit is {limit} levels", using=using, payload=value)
    refused("headers", f"the limit is {limit} levels", using=using, headers={"a": value})
    refused("headers", "the limit", using=using, headers={"a": nested(MAX_HEADERS_DEPTH, kind)})
    while value:  # Python cannot always deallocate such a value at once.
        value = next(iter(value.values() if isinstance(value, dict) else value))


def test_the_payload_size_is_counted_in_bytes_and_the_error_names_the_setting():
    with override_settings(OUTBOX={"PUBLISHERS": MEMORY, "MAX_PAYLOAD_BYTES": 100}):
        refused("payload", "101 bytes", "OUTBOX['MAX_PAYLOAD_BYTES'] is 100", payload="x" * 99)
        refused("payload", "102 bytes", payload="\N{PILE OF POO}" * 25)
    refused("payload", "1,048,576", payload="x" * 2**20)


@pytest.mark.parametrize(
    "headers", [[], [("a", 1)], "a", 0, False, (), {1: 2}, {"": 1}, {"x" * 256: 1}, {HUGE: 1}], ids=kind_of
)
def test_headers_must_be_a_dict_with_short_names(headers: Any):
    refused("headers", headers=headers)


@pytest.mark.parametrize("name", ["outbox-handler", "Outbox-Handler", "OUTBOX-"])
def test_headers_that_only_the_outbox_sets_are_refused(name: str):
    refused("headers", "reserved", f'headers["{name}"]', headers={"tenant": "7", name: {"name": "shop.delete"}})
    message = OutboxMessage(type="a", payload=1, headers={name: "x"})
    with pytest.raises(InvalidMessage, match="reserved") as raised:
        enqueue_many([message], require_transaction=False)
    assert (raised.value.field, raised.value.path) == ("messages[0].headers", f'["{name}"]')


def test_headers_over_64_kib_are_refused():
    refused("headers", "65,545 bytes", "65,536", headers={"a": "x" * 65_536})


@pytest.mark.parametrize("message_id", [3, HUGE, b"", "x", "", [], 1.5, "x" * 10_000], ids=kind_of)
def test_a_message_id_must_be_a_uuid(message_id: Any):
    refused("message_id", "not a valid UUID", message_id=message_id)


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize("message_id", ["5c435aee-b92c-81eb-804d-4db5af479535", "5c435aee-b92c-f1eb-004d-4db5af479535"])
def test_a_message_id_is_stored_unchanged_or_refused(using: str, message_id: str):
    with transaction.atomic(using=using):
        if using == "mariadb":
            # It would store zeros.
            with pytest.raises(InvalidMessage, match="use version 7 or lower"):
                enqueue("t", 1, message_id=message_id, using=using)
        else:
            enqueue("t", 1, message_id=message_id, using=using)
            assert [str(message.message_id) for message in OutboxMessage.objects.using(using)] == [message_id]


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
        (datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=5))), "1000"),
        (datetime.datetime(999, 12, 31, 23, 59, tzinfo=datetime.timezone.utc), "it must not be before 1000-01-01"),
        (datetime.datetime(9999, 12, 31, tzinfo=datetime.timezone.utc), "must be before 9999-12-31"),
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
def test_a_delay_must_be_a_duration_from_0_to_ten_years(delay: Any):
    refused("delay", delay=delay)


def test_delay_and_available_at_cannot_be_combined():
    refused("delay", "cannot be combined with available_at", delay=1, available_at=NOW)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("message", {"type": "a", "payload": 1}),
        ("id", OutboxMessage(id=1, type="a", payload=1)),
        ("key", OutboxMessage(type="a", payload=1, key=1.5)),  # type: ignore[misc]
        ("available_at", OutboxMessage(type="a", payload=1, available_at=None)),
        ("occurred_at", OutboxMessage(type="a", payload=1, occurred_at=NOW.replace(tzinfo=None))),
        ("message_id", OutboxMessage(type="a", payload=1, message_id=None)),  # type: ignore[misc]
        ("headers", OutboxMessage(type="a", payload=1, headers=None)),
        ("payload", OutboxMessage(type="a", payload={1})),
    ],
)
def test_the_error_of_enqueue_many_names_the_invalid_message(field: str, message: Any):
    with pytest.raises(InvalidMessage) as info:
        enqueue_many([OutboxMessage(type="a", payload=1), message], require_transaction=False)
    assert info.value.field == f"messages[1].{field}"
    assert str(info.value).startswith(f"messages[1].{field}")


@pytest.mark.django_db(databases=ALIASES)
def test_the_transaction_can_continue_after_an_error(using: str):
    with transaction.atomic(using=using):
        with CaptureQueriesContext(connections[using]) as queries:
            refused("payload", using=using, payload="\x00")
            with pytest.raises(InvalidMessage):
                enqueue_many([OutboxMessage(type="a", payload=1), OutboxMessage(type="", payload=1)], using=using)
        assert len(queries) == 0
        enqueue("order.created", 1, using=using)
    assert OutboxMessage.objects.using(using).count() == 1
