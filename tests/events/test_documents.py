"""The documents for consumers: what they describe, and whether they are up to date."""

import dataclasses
import datetime
import enum
import functools
import inspect
import json
import uuid
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, Optional

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from typing_extensions import NotRequired, TypedDict

from django_outbox.events import event
from django_outbox.events.documents import make_asyncapi, make_json_schemas
from django_outbox.events.registry import registry
from django_outbox.handlers import handler
from django_outbox.handlers.registry import registry as handlers
from django_outbox.messages import Message

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


class OrderSent(NamedTuple):
    id: int
    parcels: dict[str, float] = {}


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
    documents = make_json_schemas(registry)
    created = st.builds(
        OrderCreated,
        st.integers(),
        st.datetimes(timezones=st.just(datetime.timezone.utc)),
        st.lists(LINES, max_size=2),
        st.timedeltas(datetime.timedelta(-9), datetime.timedelta(9)),
        st.none() | CATEGORIES,
    )
    sent = st.builds(OrderSent, st.integers(), st.dictionaries(st.text("ab"), st.floats(-1, 1), max_size=2))
    # The references lead from the root of the whole document.
    schemas = {
        type: {**documents, **schema, "$defs": documents["$defs"]} for type, schema in documents["$defs"].items()
    }
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)

    @given(created | sent | CATEGORIES)
    def check(sent: Any) -> None:
        encoded = type(sent).__outbox_event__.encode(sent)
        validator = Draft202012Validator(schemas[encoded.type])
        validator.validate(encoded.payload)
        for name in schemas[encoded.type]["required"]:
            broken = {key: value for key, value in encoded.payload.items() if key != name}
            assert not validator.is_valid(broken)

    check()


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("name", ["missing/events.json", "missing/schemas/"])
@pytest.mark.parametrize("option", ["--asyncapi", "--json-schema"])
def test_a_directory_that_does_not_exist_is_not_created(tmp_path: Path, option: str, name: str):
    with pytest.raises(CommandError, match=r"there is no directory .*missing.*\. Create it first\."):
        run(option, str(tmp_path / name) + ("/" if name.endswith("/") else ""))
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("shop")
def test_the_schemas_in_files_stand_alone(tmp_path: Path):
    run("--json-schema", f"{tmp_path}/schemas/")
    files = sorted(path.name for path in (tmp_path / "schemas").iterdir())
    assert files == ["category.moved.json", "order%2Fsent%20~%25.json", "order.created.json", "order.paid.json"]
    schema = json.loads((tmp_path / "schemas" / "order.created.json").read_text())
    Draft202012Validator.check_schema(schema)
    encoded = OrderCreated.__outbox_event__.encode(  # type: ignore[attr-defined]
        OrderCreated(1, datetime.datetime.now(datetime.timezone.utc), [Line(product=uuid.uuid4(), price=Decimal(1))])
    )
    Draft202012Validator(schema).validate(encoded.payload)
    assert schema["description"] == "An order was placed."
    assert set(schema["required"]) == {"id", "at", "lines", "took", "category"}
    assert schema["x-event"] == {
        "type": "order.created",
        "version": 2,
        "destination": "order.created",
        "key": "order-{id}",
    }
    assert "description" not in json.loads((tmp_path / "schemas" / "category.moved.json").read_text())


@pytest.mark.usefixtures("shop")
def test_the_asyncapi_document_is_valid_and_complete():
    document = json.loads(run("--asyncapi", "--title", "Shop", "--document-version", "7"))
    validate_asyncapi(document)
    assert document["info"] == {"title": "Shop", "version": "7"}
    assert {channel["address"] for channel in document["channels"].values()} == {
        "category.moved",
        "order.created",
        "order.paid",
        "parcels",
    }
    message = document["components"]["messages"]["order-created"]
    assert (message["name"], message["title"]) == ("order.created", "OrderCreated")
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
    document = make_asyncapi(registry, title="a", version="1", handlers={})
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
def test_handlers_are_listed_with_module_and_line_and_named_in_the_document():
    with handlers.scratch():
        line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]

        @handler("order.paid")
        def send_receipt(event: Any, message: Message) -> None: ...

        handler("order.paid", name="bill")(functools.partial(send_receipt))
        (row,) = [line.split() for line in run().splitlines() if line.startswith("order.paid")]
        assert row[-2:] == [f"{__name__}:{line},", "functools"]
        found = json.loads(run("--asyncapi"))["components"]["messages"]
    assert found["order-paid"]["x-handlers"] == [send_receipt.name, "bill"]
    assert [name for name, message in found.items() if "x-handlers" in message] == ["order-paid"]


def test_the_list_of_no_events_names_the_remedy():
    assert "Decorate classes with @event" in run()


@pytest.fixture(params=[("--asyncapi", "events.json"), ("--json-schema", "events.json"), ("--json-schema", "schemas/")])
def written(request: pytest.FixtureRequest, shop: None, tmp_path: Path) -> tuple[str, str]:
    """A document that was written, with its option."""
    option, name = request.param
    path = f"{tmp_path}/{name}"
    run(option, path, *(["--title", "Shop", "--document-version", "7"] if option == "--asyncapi" else []))
    return option, path


def test_without_a_change_the_check_passes(written: tuple[str, str]):
    _, path = written
    assert run("--check", path) == f"{Path(path)} is up to date.\n"


def test_the_check_shows_the_difference_and_fails(written: tuple[str, str]):
    option, path = written
    vars(registry)["_types"].pop("category.moved")
    vars(registry)["_types"].pop("order.paid")
    event("order.paid")(TypedDict("OrderPaid", {"id": str}))  # type: ignore[operator]
    event("order.new")(dataclasses.make_dataclass("OrderNew", [("id", int)]))
    output = StringIO()
    with pytest.raises(CommandError, match=rf"is out of date\. .*write it again with {option} .*") as info:
        call_command("outbox_events", "--check", path, stdout=output, no_color=True, skip_checks=True)
    assert info.value.returncode == 1
    lines = output.getvalue().splitlines()
    changed = {line[0] + line[1:].strip().rstrip(",") for line in lines if line[0] in "+-"}
    assert {'-"key": "order-{id}"', '+"key": ""'} <= changed
    assert '-"type": "category.moved"' in changed
    assert '+"type": "order.new"' in changed
    assert not any("order.created" in line for line in changed)
    run(option, path)
    if option == "--asyncapi":
        assert "is up to date" in run("--check", path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff", "cannot be read: 'utf-8'"),
        (b"{", "is not a document that outbox_events wrote"),
        (b"[]", "is not a document that outbox_events wrote"),
        (b"3", "is not a document that outbox_events wrote"),
        (b'{"asyncapi": "3.0.0", "info": []}', "is not a document that outbox_events wrote"),
        (b'{"x-event": {}}', r"is the schema of one event\. Give its directory to --check\."),
    ],
)
def test_a_file_that_is_no_such_document_is_an_error(text: bytes | None, problem: str, tmp_path: Path):
    file = tmp_path / "events.json"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(CommandError, match=problem):
        run("--check", str(file))
