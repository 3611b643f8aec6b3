"""No value of an event arrives changed: it is refused when it is enqueued, or found by the system checks."""

import dataclasses
import datetime
import zoneinfo
from decimal import Decimal
from typing import Annotated, Any, TypeVar

import pytest
from pydantic import BaseModel, PlainSerializer, PrivateAttr, SecretBytes, SecretStr
from typing_extensions import TypedDict

from django_outbox.enqueueing.events import encode
from django_outbox.events import decode_event, event
from django_outbox.exceptions import InvalidEvent

T = TypeVar("T")

DAY = datetime.date(2026, 1, 1)


@dataclasses.dataclass
class Base:
    a: int


@dataclasses.dataclass
class Derived(Base):
    b: int


@dataclasses.dataclass(eq=False)
class WithoutEquality:
    value: Any
    lines: list[Base]


def make(annotation: Any, kind: str = "dataclass") -> Any:
    if kind == "dataclass":
        return dataclasses.make_dataclass("Changed", [("value", annotation)])
    if kind == "model":
        return type("Changed", (BaseModel,), {"__annotations__": {"value": annotation}, "__module__": __name__})
    return TypedDict("Changed", {"value": annotation})  # type: ignore[operator]


CHANGED: dict[str, tuple[Any, Any, str]] = {
    "a secret": (SecretStr, SecretStr("s3cret"), "value: would arrive changed"),
    "a secret in a list": (list[SecretStr], [SecretStr("s3cret")], "value.0: would arrive changed"),
    "secret bytes": (SecretBytes, SecretBytes(b"s3cret"), "value: would arrive changed"),
    "a decimal as Any": (Any, Decimal("9.50"), "value: would arrive as str, not Decimal"),
    "a date as Any": (Any, DAY, "value: would arrive as str, not date"),
    "a tuple as Any": (Any, (1, 2), "value: would arrive as list, not tuple"),
    "a number as a key": (Any, {1: 2}, "value: would arrive changed"),
    "deep in Any": (dict[str, Any], {"a": [{"b": Decimal(1)}]}, "value.a.0.b: would arrive as str, not Decimal"),
    "not a number as Any": (Any, float("nan"), "value: would arrive as NoneType, not float"),
    "a type variable": (T, Decimal("9.50"), "value: would arrive as str, not Decimal"),
    "text that looks like a date": (datetime.date | str, "2026-01-01", "value: would arrive as date, not str"),
    "a number that looks like a time": (
        datetime.datetime | str,
        "2026-01-01T00:00:00Z",
        "value: would arrive as datetime, not str",
    ),
    "a subclass": (Base, Derived(1, 2), "value: has 'b', which the class of its annotation lacks"),
    "a subclass in a list": (list[Base], [Base(1), Derived(1, 2)], "value.1: has 'b', which"),
}


@pytest.mark.parametrize("kind", ["dataclass", "model", "typed dict"])
@pytest.mark.parametrize("name", CHANGED)
def test_a_value_that_would_arrive_changed_is_refused(name: str, kind: str):
    annotation, value, problem = CHANGED[name]
    cls = event("changed")(make(annotation, kind))
    with pytest.raises(InvalidEvent) as caught:
        encode(cls(value=value))
    assert f": {problem}" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["dataclass", "model", "typed dict"])
@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, {"a": [1, 2.5, "b", None, True]}),
        (T, "text"),
        (datetime.date | str, "tomorrow"),
        (datetime.date | str, DAY),
        (list[Base], [Base(1)]),
    ],
)
def test_a_value_that_arrives_unchanged_is_accepted(annotation: Any, value: Any, kind: str):
    cls = event("changed")(make(annotation, kind))
    sent = cls(value=value)
    encoded = encode(sent)
    assert decode_event("changed", encoded.payload, encoded.headers) == sent


def test_the_fields_of_a_class_without_equality_are_compared():
    event("changed")(WithoutEquality)
    assert encode(WithoutEquality(1, [Base(2)])).payload == {"value": 1, "lines": [{"a": 2}]}
    with pytest.raises(InvalidEvent, match=r"value: would arrive as str, not Decimal"):
        encode(WithoutEquality(Decimal(1), []))


def test_what_a_class_chooses_to_write_is_accepted():
    """A serializer of a field, and private attributes, which no event has."""

    @event("changed")
    class Chosen(BaseModel):
        card: Annotated[str, PlainSerializer(lambda card: f"****{card[-4:]}")]
        _cache: dict[str, int] = PrivateAttr(default_factory=dict)

    chosen = Chosen(card="4111111111111111")
    chosen._cache["a"] = 1
    assert encode(chosen).payload == {"card": "****1111"}


def test_nan_is_not_taken_for_a_change():
    @event("changed")
    @dataclasses.dataclass
    class WithNumber:
        number: Annotated[float, PlainSerializer(str, when_used="json")]
        value: Any

    assert encode(WithNumber(float("nan"), 1)).payload == {"number": "nan", "value": 1}


@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize("kind", ["dataclass", "model", "typed dict"])
def test_a_time_in_the_hour_that_clocks_repeat_is_accepted(kind: str, fold: int):
    """Python finds such a time unequal to the same time in any other zone."""
    cls = event("changed")(make(list[datetime.datetime], kind))
    time = datetime.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=fold)
    encoded = encode(cls(value=[time]))
    assert encoded.payload == {"value": [f"2026-10-25T02:30:00+0{2 - fold}:00"]}


def test_an_annotation_that_cannot_be_resolved_is_named():
    @event("unresolved")
    @dataclasses.dataclass
    class Unresolved:
        id: int
        customer: "Customer"  # type: ignore[name-defined] # noqa: F821

    text = rf"an annotation of {__name__}\..*Unresolved names 'Customer', which is not defined\.$"
    with pytest.raises(InvalidEvent, match=text):
        encode(Unresolved(1, None))
    with pytest.raises(InvalidEvent, match=text):
        decode_event("unresolved", b'{"id": 1, "customer": 2}', None)


def test_a_typed_dict_that_extends_an_event_is_refused():
    class First(TypedDict):
        id: int

    first: Any = event("first")(First)
    with pytest.raises(TypeError, match="Second is not a dataclass, a pydantic model or a TypedDict"):
        event("second")(type("Second", (first,), {"__annotations__": {"number": int}}))


class Fields(TypedDict):
    id: int


class Extended(Fields):
    number: int


class Same(Fields):
    """Has the fields of its base."""


def test_two_events_may_inherit_from_a_typed_dict():
    extended, same = event("extended")(Extended), event("same")(Same)
    assert encode(extended(id=1, number=2)).payload == {"id": 1, "number": 2}
    assert encode(same(id=1)).payload == {"id": 1}
