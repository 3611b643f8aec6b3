"""The system checks of events and routes, each by its ID."""

import dataclasses
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_outbox.checks import TAG
from django_outbox.conf.routes import choose_publishers, find_unreachable
from django_outbox.events import event, upgrade

MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}


@dataclasses.dataclass
class OrderCreated:
    id: int
    customer: str = ""


@dataclasses.dataclass
class OrderPlaced:
    id: int


def found(**outbox: Any) -> list[CheckMessage]:
    with override_settings(OUTBOX={"PUBLISHERS": {"default": MEMORY, "audit": MEMORY}, **outbox}):
        return run_checks(tags=[TAG], databases=[])


def only(id: str, **outbox: Any) -> CheckMessage:
    (problem,) = found(**outbox)
    assert problem.id == f"django_outbox.{id}"
    assert problem.hint, "the check has no remedy"
    return problem


def test_a_correct_event_gives_no_message():
    cls = event("order.created", version=3, key="order-{id}", publisher="audit")(OrderCreated)
    upgrade(cls, from_version=2)(dict)
    assert found(ROUTES={"order.*": ["default", "audit"], "*": ["audit"]}) == []


def test_e019_two_classes_for_one_type():
    event("order.created")(OrderCreated)
    event("order.created")(OrderPlaced)
    assert only("E019").msg == (
        f"Two classes are registered for the event order.created: {__name__}.OrderCreated and {__name__}.OrderPlaced."
    )


def test_a_module_that_is_loaded_again_is_no_conflict():
    event("order.created")(OrderCreated)
    event("order.created")(
        dataclasses.make_dataclass("OrderCreated", [("id", int)], namespace={"__module__": __name__})
    )
    assert found() == []


@pytest.mark.parametrize(
    ("key", "problem", "hint"),
    [
        ("order-{ids}", "has no field 'ids'", "Did you mean {id}? "),
        ("order-{}", "has no field ''", "It must be"),
        ("order-{id.hex}", "has no field 'id.hex'", "It must be"),
        ("order-{id:03}", "cannot use it as a template: {id} has a format", "It must be"),
        ("order-{id!r}", "cannot use it as a template: {id} has a format", "It must be"),
        ("order-{id", "cannot use it as a template: ", "It must be"),
    ],
)
def test_e020_key_names_no_field(key: str, problem: str, hint: str):
    event("order.created", key=key)(OrderCreated)
    message = only("E020")
    assert problem in message.msg
    assert str(message.hint).startswith(hint)


def test_e021_gap_in_the_upgrades():
    cls = event("order.created", version=4)(OrderCreated)
    upgrade(cls, from_version=1)(dict)
    upgrade(cls, from_version=3)(dict)
    assert "none from version 2" in only("E021").msg


class Opaque:
    pass


@dataclasses.dataclass
class WithOpaque:
    value: Opaque


@dataclasses.dataclass
class WithUnknown:
    value: "NoSuchClass"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("cls", [WithOpaque, WithUnknown])
def test_e022_class_cannot_be_encoded(cls: Any):
    event("order.created")(cls)
    message = only("E022")
    assert cls.__name__ in str(message.hint)
    assert "arbitrary_types_allowed" in message.msg or "NoSuchClass" in message.msg
    assert "\\n" not in message.msg


def test_e024_unknown_publisher():
    event("order.created", publisher="audits")(OrderCreated)
    message = only("E024")
    assert "'audits'" in message.msg
    assert str(message.hint).startswith("Did you mean 'audit'? ")


@pytest.mark.parametrize(
    "routes", [[], {"a": []}, {"a": "default"}, {"a": ["default", "default"]}, {"": ["default"]}, {"a": [3]}]
)
def test_e023_invalid_routes(routes: Any):
    assert "OUTBOX['ROUTES']" in found(ROUTES=routes)[0].msg
    assert {message.id for message in found(ROUTES=routes)} == {"django_outbox.E023"}


def test_w023_pattern_never_applies():
    message = only("W023", ROUTES={"order.*": ["default"], "order.paid": ["audit"]})
    assert "'order.paid'" in message.msg
    assert "'order.*'" in message.msg


PIECES = st.lists(st.sampled_from(["a", "b", ".", "*", "?", "[ab]", "[!a]", "[a"]), min_size=1, max_size=4).map("".join)


@given(st.lists(PIECES, min_size=2, max_size=4, unique=True), st.lists(st.text("ab.[", max_size=5), max_size=30))
def test_a_pattern_that_is_reported_never_applies(patterns: list[str], types: list[str]):
    routes = {pattern: (pattern,) for pattern in patterns}
    unreachable = {pattern for pattern, _ in find_unreachable(routes)}
    assert not unreachable & {choose_publishers(type, routes)[0] for type in types}


@pytest.mark.parametrize(
    ("earlier", "pattern", "expected"),
    [
        ("*", "a.*", True),
        ("a.*", "a.b.*", True),
        ("a.*.c", "a.b.c", True),
        ("a.*", "*", False),
        ("a.?", "a.*", False),
        ("a.b", "a.*", False),
        ("*.paid", "order.*", False),
    ],
)
def test_which_patterns_are_reported(earlier: str, pattern: str, expected: bool):
    assert bool(list(find_unreachable({earlier: ("default",), pattern: ("default",)}))) is expected
