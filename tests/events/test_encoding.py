"""Events become messages, and come back as they went."""

import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from collections import deque
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from django_outbox import InvalidMessage, OutboxMessage, enqueue, enqueue_many
from django_outbox.events import decode_event, event
from django_outbox.exceptions import InvalidEvent
from tests.conftest import ALIASES
from tests.support.messages import count


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass(frozen=True)
class Line:
    product: uuid.UUID
    price: Decimal
    colour: Colour | None = None


VALUES: dict[str, Any] = {
    "number": st.integers(-(2**63), 2**63 - 1),
    "ratio": st.floats(allow_nan=False, allow_infinity=False),
    "total": st.decimals(allow_nan=False, allow_infinity=False),
    "at": st.datetimes(
        timezones=st.sampled_from([datetime.timezone.utc, datetime.timezone(datetime.timedelta(hours=2))])
    ),
    "day": st.dates(),
    "took": st.timedeltas(datetime.timedelta(days=-999), datetime.timedelta(days=999)),
    "id": st.uuids(),
    "colour": st.sampled_from(Colour),
    "note": st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    "lines": st.lists(
        st.builds(Line, st.uuids(), st.decimals(0, 10**9, places=2), st.none() | st.sampled_from(Colour)), max_size=3
    ),
    "tags": st.frozensets(st.sampled_from("abc")),
    "counts": st.dictionaries(st.integers(0, 99), st.booleans(), max_size=3),
}
TYPES: dict[str, Any] = {
    "number": int,
    "ratio": float,
    "total": Decimal,
    "at": datetime.datetime,
    "day": datetime.date,
    "took": datetime.timedelta,
    "id": uuid.UUID,
    "colour": Colour,
    "note": str | None,
    "lines": list[Line],
    "tags": frozenset[str],
    "counts": dict[int, bool],
}


def make_dataclass() -> Any:
    return dataclasses.make_dataclass("Everything", [*TYPES.items()], slots=True, frozen=True)


def make_model() -> Any:
    return type("Everything", (BaseModel,), {"__annotations__": TYPES, "__module__": __name__})


def make_typed_dict() -> Any:
    return TypedDict("Everything", TYPES)  # type: ignore[operator]


MAKERS = [make_dataclass, make_model, make_typed_dict]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_value_comes_back_as_it_went(make: Any):
    cls = event("test.everything", version=3)(make())

    @given(st.fixed_dictionaries(VALUES))
    def check(values: dict[str, Any]) -> None:
        sent = cls(**values)
        encoded = cls.__outbox_event__.encode(sent)
        text = json.dumps(encoded.payload).encode()
        for payload in (text, json.loads(text)):
            found = decode_event("test.everything", payload, encoded.headers)
            assert type(found) is cls
            assert found == sent
        # Equal decimals may have different exponents: 9.5 and 9.50.
        total = found["total"] if isinstance(found, dict) else found.total
        assert str(total) == str(decimal.Decimal(values["total"]))
        assert encoded.payload.keys() == TYPES.keys()

    check()


@dataclasses.dataclass
class OrderSent:
    number: int
    total: Decimal
    at: datetime.datetime


@pytest.mark.django_db(databases=ALIASES)
def test_an_event_becomes_one_message(using: str):
    cls: Any = event("order.sent", version=3, key="order-{number}", topic="orders")(OrderSent)
    sent = cls(7, Decimal("9.50"), datetime.datetime(2026, 5, 1, 8, 30, 0, 123456, tzinfo=datetime.timezone.utc))
    with transaction.atomic(using=using):
        enqueue(sent, using=using)
        enqueue_many([sent, OutboxMessage(type="a", payload=1)], using=using)
    first, second, _ = OutboxMessage.objects.using(using).order_by("pk")
    for message in (first, second):
        assert (message.type, message.key, message.topic) == ("order.sent", "order-7", "orders")
        assert message.headers == {"event-version": 3}
        assert message.payload["at"] == "2026-05-01T08:30:00.123456Z"
        assert message.payload["total"] == "9.50"
        assert decode_event(message.type, message.payload, message.headers) == sent


@dataclasses.dataclass
class OrderCreated:
    id: int
    total: Decimal = Decimal(0)
    note: str | None = None


@pytest.mark.django_db
def test_arguments_take_precedence_over_the_event():
    event("order.created", key="order-{id}", topic="orders", publisher="default")(OrderCreated)
    with transaction.atomic():
        message = enqueue(OrderCreated(7), key=uuid.UUID(int=1), topic="t", headers={"event-version": 1, "trace": "1"})
    message.refresh_from_db()
    assert (message.key, message.topic) == (str(uuid.UUID(int=1)), "t")
    assert message.headers == {"event-version": 1, "trace": "1"}


def test_the_version_of_an_event_cannot_be_replaced():
    event("order.created")(OrderCreated)
    with pytest.raises(InvalidMessage, match=r'headers\["event-version"\]: is 1 for this event') as info:
        enqueue(OrderCreated(7), headers={"event-version": 9})
    assert (info.value.field, info.value.path) == ("headers", '["event-version"]')


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"id": "7"}, "id: must be of type int, not str"),
        ({"id": 7, "total": "abc"}, "total: must be of type decimal, not str"),
        ({"id": 7, "total": 9}, "total: must be of type decimal, not int"),
        ({"id": None}, "id: "),
        ({"id": 7, "note": b"\xff"}, ""),
        ({"id": 7, "note": gettext_lazy("note")}, ""),
        ({"id": 7, "note": object()}, ""),
    ],
)
@pytest.mark.django_db
def test_a_value_of_another_type_is_refused_and_the_transaction_can_continue(values: dict[str, Any], problem: str):
    event("order.created")(OrderCreated)
    with transaction.atomic():
        with pytest.raises(InvalidEvent) as info:
            enqueue(OrderCreated(**values))
        with pytest.raises(InvalidEvent, match=r"^messages\[1\]: order\.created"):
            enqueue_many([OrderCreated(1), OrderCreated(**values)])
        enqueue(OrderCreated(8))
    assert str(info.value).startswith(f"order.created ({__name__}.OrderCreated): {problem}")
    assert count("default") == 1


NAIVE = datetime.datetime(2026, 5, 1, 8, 30)  # noqa: DTZ001


@dataclasses.dataclass
class Stop:
    at: datetime.datetime | None


@pytest.mark.django_db
class TestNaiveDatetimes:
    @pytest.fixture
    def tour(self) -> type:
        return event("tour.planned")(dataclasses.make_dataclass("Tour", [("stops", dict[str, list[Stop]])]))

    def test_one_is_refused_by_its_path_with_a_remedy(self, tour: type):
        aware = NAIVE.replace(tzinfo=datetime.timezone.utc)
        event("opened")(Stop)
        with transaction.atomic():
            enqueue(tour(stops={"a": [Stop(aware), Stop(None)]}))
            enqueue(Stop(aware))
            for given, path in (tour(stops={"a": [Stop(aware), Stop(NAIVE)]}), "stops.a.1.at"), (Stop(NAIVE), "at"):
                with pytest.raises(InvalidEvent) as info:
                    enqueue(given)
                assert f"): {path}: is a naive datetime" in str(info.value)
                assert "Pass an aware one, such as timezone.now()" in str(info.value)

    @pytest.mark.parametrize(
        ("annotation", "times"),
        [
            (list[datetime.datetime], [NAIVE]),
            (set[datetime.datetime], {NAIVE}),
            (frozenset[tuple[datetime.datetime, int]], frozenset([(NAIVE, 1)])),
            (deque[datetime.datetime], deque([NAIVE])),
            (dict[datetime.datetime, int], {NAIVE: 1}),
        ],
    )
    def test_one_is_found_in_every_kind_of_container(self, annotation: Any, times: Any):
        cls = event("opened")(dataclasses.make_dataclass("Opened", [("times", annotation)]))
        with transaction.atomic(), pytest.raises(InvalidEvent, match=r"times.*: .*is a naive datetime"):
            enqueue(cls(times=times))


SURROGATE = chr(0xD800)


@dataclasses.dataclass
class Sums:
    numbers: list[int]
    flags: dict[str, bool]
    any: Any = None
    members: set[int] = dataclasses.field(default_factory=set)


def test_booleans_are_found_at_any_depth_and_stay_where_they_belong():
    cls: Any = event("sums.made")(Sums)
    assert cls.__outbox_event__.encode(cls([1, 0], {"a": True}, [True, 1])).payload["any"] == [True, 1]
    with pytest.raises(InvalidEvent, match=r": numbers\.1: must be a number"):
        cls.__outbox_event__.encode(cls([1, True], {"a": True}))
    with pytest.raises(InvalidEvent, match=r": members: must be a number"):
        cls.__outbox_event__.encode(cls([1], {"a": True}, members={True}))


@pytest.mark.parametrize("note", [SURROGATE, {"a": ["x", SURROGATE]}, {SURROGATE: 1}])
def test_a_lone_surrogate_is_refused(note: Any):
    @event("note.written")
    @dataclasses.dataclass
    class NoteWritten:
        note: Any

    encoder: Any = NoteWritten.__outbox_event__  # type: ignore[attr-defined]
    with pytest.raises(InvalidEvent, match="surrogate") as info:
        encoder.encode(NoteWritten(note))
    assert str(info.value).isprintable()


def test_an_error_does_not_quote_the_value():
    @event("card.charged")
    @dataclasses.dataclass
    class CardCharged:
        number: int
        limit: int = Field(0, le=9)

    for wrong in (CardCharged("4111-1111"), CardCharged(1, 4111), CardCharged(None)):  # type: ignore[arg-type]
        with pytest.raises(InvalidEvent) as info:
            enqueue(wrong)
        assert "4111" not in str(info.value)
        assert info.value.__cause__ is None
        assert info.value.__suppress_context__
    for payload in ({"number": "4111-1111"}, b"4111-1111"):
        with pytest.raises(InvalidEvent) as info:
            decode_event("card.charged", payload, {})
        assert "4111" not in str(info.value)


def test_a_model_with_an_alias_is_encoded_by_the_alias():
    @event("order.renamed", key="order-{id}")
    class OrderRenamed(BaseModel):
        id: int = Field(alias="orderId")

    sent = OrderRenamed(orderId=7)
    encoded = OrderRenamed.__outbox_event__.encode(sent)  # type: ignore[attr-defined]
    assert (encoded.payload, encoded.key) == ({"orderId": 7}, "order-7")
    assert decode_event("order.renamed", encoded.payload, {}) == sent


def test_a_subclass_of_an_event_is_not_that_event():
    cls = event("order.created")(OrderCreated)

    class Special(cls):  # type: ignore[misc, valid-type]
        pass

    with pytest.raises(InvalidEvent, match="Special is not an event, but a subclass of the event OrderCreated"):
        enqueue(Special(7))


@pytest.mark.parametrize("value", [None, ""])
def test_an_empty_field_cannot_be_part_of_a_key(value: Any):
    event("order.created", key="order-{note}")(OrderCreated)
    with pytest.raises(InvalidEvent, match=r"the key 'order-\{note\}' needs note, which is"):
        enqueue(OrderCreated(7, note=value))


def test_an_enum_in_a_key_is_its_value():
    @event("colour.chosen", key="{colour}")
    @dataclasses.dataclass
    class ColourChosen:
        colour: Colour

    assert ColourChosen.__outbox_event__.encode(ColourChosen(Colour.RED)).key == "red"  # type: ignore[attr-defined]


def test_what_is_no_event_is_refused():
    with pytest.raises(InvalidMessage, match="type: must be a string or an event, not OrderLine"):
        enqueue(dataclasses.make_dataclass("OrderLine", ["id"])(7))
    event("order.created")(OrderCreated)
    with pytest.raises(InvalidMessage, match=r"not the class OrderCreated\. Pass an instance of a class that is"):
        enqueue(OrderCreated)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="payload: cannot be combined with an event"):
        enqueue(OrderCreated(7), {})
    with pytest.raises(InvalidMessage, match="payload: is missing"):
        enqueue("order.created")


def test_a_key_that_is_no_field_of_a_typed_dict_is_refused_unless_the_class_allows_it():
    class OrderSent(TypedDict):
        id: int

    class OrderNoted(TypedDict):
        __pydantic_config__ = {"extra": "allow"}  # type: ignore[misc]
        id: int

    sent: Any = event("order.sent")(OrderSent)
    with pytest.raises(InvalidEvent, match=r"order\.sent .*OrderSent has no field nte"):
        enqueue(sent(id=1, nte="late"))
    noted: Any = event("order.noted")(OrderNoted)
    assert noted.__outbox_event__.encode(noted(id=1, note="late")).payload == {"id": 1, "note": "late"}


def test_not_a_number_is_refused_with_its_path():
    @event("ratio.measured")
    @dataclasses.dataclass
    class RatioMeasured:
        ratio: float

    with pytest.raises(InvalidMessage, match=r'payload\["ratio"\]'):
        enqueue(RatioMeasured(float("nan")), require_transaction=False)
