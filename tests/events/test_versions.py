"""Messages of older versions are upgraded, and unknown ones are clear errors."""

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from typing_extensions import TypedDict

from django_outbox.events import decode_event, event, upgrade
from django_outbox.exceptions import InvalidEvent, OutboxError, UnknownEvent


@dataclasses.dataclass
class OrderCreated:
    id: int
    currency: str
    lines: int


@pytest.fixture(autouse=True)
def order_created(fresh_registry: object) -> Any:
    """Version 3, with upgrades from 1 and 2."""
    cls: Any = event("order.created", version=3)(OrderCreated)

    @upgrade(cls, from_version=1)
    def add_currency(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "currency": "EUR"}

    @upgrade(cls, from_version=2)
    def count_lines(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "lines": len(payload["lines"])}

    return cls


@pytest.mark.parametrize("version", [1, "1", b"1", None])
@pytest.mark.parametrize("as_text", [False, True])
def test_the_oldest_version_passes_through_the_chain(version: Any, as_text: bool):
    payload = {"id": 7, "lines": ["a", "b"]}
    headers = {} if version is None else {"event-version": version}
    found = decode_event("order.created", json.dumps(payload).encode() if as_text else payload, headers)
    assert found == OrderCreated(7, "EUR", 2)


def test_a_later_version_passes_through_the_rest_of_the_chain():
    payload = {"id": 7, "currency": "CHF", "lines": []}
    assert decode_event("order.created", payload, {"event-version": 2}) == OrderCreated(7, "CHF", 0)


def test_a_newer_version_is_an_error_that_says_what_to_deploy():
    with pytest.raises(UnknownEvent, match=r"has version 4, but .*OrderCreated is version 3. Deploy") as info:
        decode_event("order.created", b"{}", {"event-version": 4})
    assert (info.value.type, info.value.version) == ("order.created", 4)
    assert isinstance(info.value, OutboxError)


def test_an_unknown_type_is_an_error_that_suggests_a_known_one():
    with pytest.raises(UnknownEvent, match=r"No class is registered for the event order.create. Did you mean 'order"):
        decode_event("order.create", b"{}", {})


def test_a_missing_upgrade_is_an_error():
    event("order.paid", version=2)(dataclasses.make_dataclass("OrderPaid", ["id"]))
    with pytest.raises(UnknownEvent, match=r"@upgrade\(OrderPaid, from_version=1\)"):
        decode_event("order.paid", {}, {})


@pytest.mark.parametrize("version", [0, -1, 1.5, True, "x", "", "²", [], {"a": 1}, 10**40])
def test_an_invalid_version_is_an_error(version: Any):
    with pytest.raises(InvalidEvent, match="the header event-version must be a whole number"):
        decode_event("order.created", {}, {"event-version": version})


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({"id": 7}, "the upgrade from version 2 failed with KeyError: 'lines'"),
        (b"no", "the payload is not JSON"),
        (b"\xff", "the payload is not JSON"),
        ([1], "the upgrade from version 1 failed with TypeError"),
        ({"id": "x", "lines": []}, "id: Input should be a valid integer"),
    ],
)
def test_a_payload_that_cannot_be_upgraded_is_an_error(payload: Any, problem: str):
    with pytest.raises(InvalidEvent) as info:
        decode_event("order.created", payload, {})
    assert str(info.value).startswith(f"order.created ({__name__}.OrderCreated): {problem}")


@pytest.mark.parametrize("payload", [b"no", b"\xff", b"", [], None, 3, "text", {"id": 1}])
def test_a_payload_that_does_not_match_the_class_is_an_error(payload: Any):
    with pytest.raises(InvalidEvent, match=r"^order.created \(.*\.OrderCreated\): "):
        decode_event("order.created", payload, {"event-version": 3})


@pytest.mark.parametrize("version", [0, 3, 4, "1", True])
def test_an_upgrade_starts_from_an_older_version(order_created: Any, version: Any):
    with pytest.raises(ImproperlyConfigured, match="but the event has version 3"):
        upgrade(order_created, from_version=version)


def test_a_second_upgrade_from_a_version_is_refused(order_created: Any):
    with pytest.raises(ImproperlyConfigured, match="has two upgrades from version 1"):
        upgrade(order_created, from_version=1)(dict)


def test_upgrade_needs_an_event():
    with pytest.raises(TypeError, match="Path is not an event"):
        upgrade(Path, from_version=1)


def test_an_event_that_inherits_from_another_has_upgrades_of_its_own(order_created: Any):
    @event("order.imported", version=2)
    @dataclasses.dataclass
    class OrderImported(order_created):  # type: ignore[misc]
        source: str

    upgrade(OrderImported, from_version=1)(lambda payload: {**payload, "source": "csv"})
    payload = {"id": 7, "currency": "EUR", "lines": 1}
    assert decode_event("order.imported", payload, {}) == OrderImported(7, "EUR", 1, "csv")


@pytest.mark.parametrize(
    "arguments",
    [
        {"type": ""},
        {"type": 3},
        {"type": "a", "version": 0},
        {"type": "a", "version": "1"},
        {"type": "a", "key": 7},
        {"type": "a", "topic": None},
    ],
)
def test_wrong_arguments_of_event_are_refused_at_once(arguments: Any):
    with pytest.raises(ImproperlyConfigured, match="@event"):
        event(**arguments)


class Special(OrderCreated):
    extra: int


@pytest.mark.parametrize(
    ("cls", "problem"),
    [
        (int, "write @event above @dataclass"),
        (dict, "write @event above @dataclass"),
        (Special, "Special is not a dataclass"),
        (lambda: None, "is not a class"),
    ],
)
def test_anything_else_cannot_be_an_event(cls: Any, problem: str):
    with pytest.raises(TypeError, match=problem):
        event("order.created")(cls)


def test_a_class_has_one_type():
    with pytest.raises(ImproperlyConfigured, match=r"OrderCreated is the class of the event 'order\.created' already"):
        event("order.placed")(OrderCreated)


def test_the_instances_of_a_typed_dict_are_dicts():
    @event("order.sent")
    class OrderSent(TypedDict):
        id: int

    sent = OrderSent(id=7)
    assert sent == {"id": 7}
    assert isinstance(decode_event("order.sent", {"id": 7}, {}), OrderSent)  # type: ignore[misc]


def test_without_pydantic_the_error_names_the_extra():
    with (
        mock.patch.dict("sys.modules", {"django_outbox.events.codec": None}),
        pytest.raises(ImproperlyConfigured, match=r"need pydantic 2.7 .* pip install '.*\[events\]'"),
    ):
        event("a")(Path)
