"""The list of events, and the document for consumers."""

import dataclasses
import datetime
import enum
import functools
import inspect
import json
import uuid
from decimal import Decimal
from io import StringIO
from typing import Any, Optional

import pytest
from django.core.management import call_command
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from typing_extensions import NotRequired, TypedDict

from django_outbox.events import event
from django_outbox.events.documents import make_asyncapi
from django_outbox.events.registry import registry
from django_outbox.handlers import handler
from django_outbox.messages import Message
from tests.support.effects import scratch_handlers

MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    product: uuid.UUID
    price: Decimal
    colour: Colour | None = None


@dataclasses.dataclass
class Category:
    name: str
    parent: Optional["Category"] = None


@dataclasses.dataclass
class OrderCreated:
    """An order was placed."""

    id: int
    at: datetime.datetime
    lines: list[Line]
    took: datetime.timedelta = datetime.timedelta(0)
    category: Category | None = None


@dataclasses.dataclass
class OrderSent:
    id: int
    parcels: dict[str, float] = dataclasses.field(default_factory=dict)


class OrderPaid(TypedDict):
    id: int
    method: NotRequired[str]


@pytest.fixture
def shop(fresh_registry: object) -> None:
    event("order.created", version=2, key="order-{id}")(OrderCreated)
    event("order/sent ~%", topic="parcels", publisher="audit")(OrderSent)
    event("order.paid", key="order-{id}")(OrderPaid)
    event("category.moved")(Category)


def run(*arguments: str) -> str:
    output = StringIO()
    call_command("outbox_events", *arguments, stdout=output, no_color=True, skip_checks=True)
    return output.getvalue()


LINES = st.builds(
    Line, product=st.uuids(), price=st.decimals(0, 99, places=2), colour=st.none() | st.sampled_from(Colour)
)
CATEGORIES = st.recursive(
    st.builds(Category, st.text("ab"), st.none()), lambda inner: st.builds(Category, st.text("ab"), inner), max_leaves=3
)


@pytest.mark.usefixtures("shop")
def test_payloads_match_the_schema():
    document = make_asyncapi(registry)
    created = st.builds(
        OrderCreated,
        st.integers(),
        st.datetimes(timezones=st.just(datetime.timezone.utc)),
        st.lists(LINES, max_size=2),
        st.timedeltas(datetime.timedelta(-9), datetime.timedelta(9)),
        st.none() | CATEGORIES,
    )
    sent = st.builds(OrderSent, st.integers(), st.dictionaries(st.text("ab"), st.floats(-1, 1), max_size=2))
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    messages = document["components"]["messages"]
    payloads = {message["name"]: message["payload"] for message in messages.values()}

    @given(created | sent | CATEGORIES)
    def check(sent: Any) -> None:
        encoded = type(sent).__outbox_event__.encode(sent)
        # The references lead from the root of the whole document.
        validator = Draft202012Validator({**document, **payloads[encoded.type]})
        validator.validate(encoded.payload)
        for name in schemas[payloads[encoded.type]["$ref"].rpartition("/")[2]]["required"]:
            broken = {key: value for key, value in encoded.payload.items() if key != name}
            assert not validator.is_valid(broken)

    check()


@pytest.mark.usefixtures("shop")
def test_the_asyncapi_document_is_valid_and_complete():
    document = json.loads(run("--asyncapi"))
    validate_asyncapi(document)
    assert document["info"] == {"title": "Events", "version": "1.0.0"}
    assert {channel["address"] for channel in document["channels"].values()} == {
        "category.moved",
        "order.created",
        "order.paid",
        "parcels",
    }
    message = document["components"]["messages"]["order-created"]
    assert (message["name"], message["title"]) == ("order.created", "OrderCreated")
    assert message["x-key"] == "order-{id}"
    schemas = document["components"]["schemas"]
    assert schemas["order-created"]["description"] == "An order was placed."
    assert "description" not in schemas["category-moved"]
    assert message["headers"]["properties"]["event-version"]["const"] == 2
    for reference in references(document):
        found: Any = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


def validate_asyncapi(document: dict[str, Any]) -> None:
    from pydantic_asyncapi.v3 import AsyncAPI  # noqa: PLC0415 - each process of a run collects this module

    AsyncAPI.model_validate(document)


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for each in value.values() for found in references(each)]
    if isinstance(value, list):
        return [found for each in value for found in references(each)]
    return []


def test_types_that_give_the_same_name_in_asyncapi_are_kept_apart():
    for type in ("a/b", "a-b", "a b"):
        event(type)(dataclasses.make_dataclass("Event", [("id", int)]))
    document = make_asyncapi(registry)
    validate_asyncapi(document)
    assert sorted(message["name"] for message in document["components"]["messages"].values()) == ["a b", "a-b", "a/b"]


@pytest.mark.usefixtures("shop")
def test_the_list_shows_each_event_with_its_publishers():
    with override_settings(
        OUTBOX={"PUBLISHERS": {"default": MEMORY, "audit": MEMORY}, "ROUTES": {"order.c*": ["default", "audit"]}}
    ):
        lines = run().splitlines()
    assert [line.split() for line in lines] == [
        ["type", "version", "class", "key", "publishers", "handlers"],
        ["category.moved", "1", f"{__name__}.Category", "-", "default", "-"],
        ["order.created", "2", f"{__name__}.OrderCreated", "order-{id}", "default,", "audit", "-"],
        ["order.paid", "1", f"{__name__}.OrderPaid", "order-{id}", "default", "-"],
        ["order/sent", "~%", "1", f"{__name__}.OrderSent", "-", "audit", "-"],
    ]


@pytest.mark.usefixtures("shop")
def test_handlers_are_listed_with_module_and_line():
    with scratch_handlers():
        line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]

        @handler("order.paid")
        def send_receipt(event: Any, message: Message) -> None: ...

        handler("order.paid", name="bill")(functools.partial(send_receipt))
        (row,) = [line.split() for line in run().splitlines() if line.startswith("order.paid")]
        assert row[-2:] == [f"{__name__}:{line},", "functools"]


def test_the_list_of_no_events_names_the_remedy():
    assert "Decorate classes with @event" in run()
