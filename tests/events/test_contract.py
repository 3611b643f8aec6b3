"""The documents for consumers: what they describe, and which changes between them break consumers."""

import dataclasses
import datetime
import enum
import json
import uuid
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, ValidationError
from pydantic_asyncapi.v3 import AsyncAPI
from typing_extensions import NotRequired, TypedDict

from django_outbox.events import event
from django_outbox.events.codec import DECIMAL
from django_outbox.events.contract.comparison import find_breaking_changes
from django_outbox.events.contract.documents import make_asyncapi, make_json_schemas
from django_outbox.events.registry import registry

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

    @given(created | sent | CATEGORIES)
    def check(sent: Any) -> None:
        encoded = type(sent).__outbox_event__.encode(sent)
        # The references lead from the root of the whole document.
        schema = {**documents, **documents["$defs"][encoded.type], "$defs": documents["$defs"]}
        Draft202012Validator.check_schema(schema)
        Draft202012Validator(schema).validate(encoded.payload)
        for name in schema["required"]:
            broken = {key: value for key, value in encoded.payload.items() if key != name}
            assert not Draft202012Validator(schema).is_valid(broken)

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
    AsyncAPI.model_validate(document)
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


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for each in value.values() for found in references(each)]
    if isinstance(value, list):
        return [found for each in value for found in references(each)]
    return []


def test_the_validator_of_asyncapi_finds_mistakes():
    """Otherwise the test above could not fail."""
    event("order.created")(OrderCreated)
    document = make_asyncapi(registry, title="a", version="1")
    AsyncAPI.model_validate(document)
    send = {"action": "publish", "channel": {"$ref": "#/channels/order-created"}}
    for wrong in ({"asyncapi": "2.6.0"}, {"info": {"title": "a"}}, {"operations": {"a": send}}, {"channels": {"a": 3}}):
        with pytest.raises(ValidationError):
            AsyncAPI.model_validate({**document, **wrong})


def test_types_that_give_the_same_name_in_asyncapi_are_kept_apart():
    for type in ("a/b", "a-b", "a b"):
        event(type)(dataclasses.make_dataclass("Event", [("id", int)]))
    document = make_asyncapi(registry, title="a", version="1")
    AsyncAPI.model_validate(document)
    assert sorted(message["name"] for message in document["components"]["messages"].values()) == ["a b", "a-b", "a/b"]


@pytest.mark.usefixtures("shop")
def test_the_list_shows_each_event_with_its_publishers():
    with override_settings(
        OUTBOX={"PUBLISHERS": {"default": MEMORY, "audit": MEMORY}, "ROUTES": {"order.c*": ["default", "audit"]}}
    ):
        lines = run().splitlines()
    assert [line.split() for line in lines] == [
        ["type", "version", "class", "key", "publishers"],
        ["category.moved", "1", f"{__name__}.Category", "-", "default"],
        ["order.created", "2", f"{__name__}.OrderCreated", "order-{id}", "default,", "audit"],
        ["order.paid", "1", f"{__name__}.OrderPaid", "order-{id}", "default"],
        ["order/sent", "~%", "1", f"{__name__}.OrderSent", "-", "audit"],
    ]


def test_the_list_of_no_events_names_the_remedy():
    assert "Decorate classes with @event" in run()


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("option", ["--asyncapi", "--json-schema"])
def test_without_a_change_the_check_passes(option: str, tmp_path: Path):
    file = tmp_path / "events.json"
    run(option, str(file))
    assert run("--check", str(file)) == f"No change since {file} breaks consumers.\n"


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("option", ["--asyncapi", "--json-schema"])
def test_the_check_names_each_breaking_change_and_fails(option: str, tmp_path: Path):
    file = tmp_path / "events.json"
    run(option, str(file))
    vars(registry)["_types"].clear()
    event("order.created", version=1, topic="orders")(dataclasses.make_dataclass("OrderCreated", [("id", str)]))
    event("order.paid")(OrderPaid)
    output = StringIO()
    with pytest.raises(CommandError, match=r"11 changes break consumers that rely on .*events.json") as info:
        call_command("outbox_events", "--check", str(file), stdout=output, no_color=True, skip_checks=True)
    assert info.value.returncode == 1
    assert output.getvalue().splitlines() == [
        "category.moved: the event was removed",
        "order.created: it is sent to 'orders' instead of 'order.created'",
        "order.created: its key is '' instead of 'order-{id}', which changes order and partitions",
        "order.created: the version is 1, but it was 2",
        "order.created: id may be string, but it was integer",
        "order.created: at was removed",
        "order.created: lines was removed",
        "order.created: took was removed",
        "order.created: category was removed",
        "order.paid: its key is '' instead of 'order-{id}', which changes order and partitions",
        "order/sent ~%: the event was removed",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "cannot be read"),
        ("{", "is not a document that outbox_events wrote"),
        ("[]", "neither a JSON Schema nor an AsyncAPI document"),
        ('{"$defs": {"a": {}}}', "has no 'x-event'"),
        ('{"asyncapi": "3.0.0", "components": []}', "is not a document"),
    ],
)
def test_a_file_that_is_no_such_document_is_an_error(text: str | None, problem: str, tmp_path: Path):
    file = tmp_path / "events.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CommandError, match=problem):
        run("--check", str(file))


def schemas_of(annotation: Any, *, required: bool = True) -> Any:
    """The document of one event with one field."""
    vars(registry)["_types"].clear()
    fields = {"value": annotation if required else NotRequired[annotation]}
    event("a")(TypedDict("Event", fields))  # type: ignore[operator]
    return json.loads(json.dumps(make_json_schemas(registry)))


class Small(BaseModel):
    a: int


class Large(BaseModel):
    a: int
    b: str


class Green(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: int


class Fish(BaseModel):
    kind: Literal["fish"]
    fins: int


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (int, int | None, "value may be null, but it was integer"),
        (int, float, "value may be number, but it was integer"),
        (int, str, "value may be string, but it was integer"),
        (int, Any, "value may be any value, but it was integer"),
        (int | str, int | float, "value may be number, but it was integer or string"),
        (datetime.datetime, datetime.date, "value has the format 'date' instead of 'date-time'"),
        (uuid.UUID, str, "value has the format None instead of 'uuid'"),
        (Colour, Green, "value may have the new value 'green'"),
        (Literal["a"], Literal["a", "b"], "value may have the new value 'b'"),
        (Literal["a", "b"], str, "value may have any value, but it was one of 'a', 'b'"),
        (Literal["a"], Literal[1], "value may be integer, but it was string"),
        (Large, Small, "value.b was removed"),
        (list[Large], list[Small], "value[].b was removed"),
        (list[int], list[str], "value[] may be string, but it was integer"),
        (dict[str, Large], dict[str, Small], "value{}.b was removed"),
        (dict[str, int], dict[str, Any], "value{} may be any value, but it was integer"),
        (Large | None, Small | None, "value.b was removed"),
        (tuple[int, int], tuple[int], "value[1] was removed"),
        (tuple[int, int], tuple[int, str], "value[1] may be string, but it was integer"),
        (Annotated[str, Field(max_length=9)], Annotated[str, Field(max_length=10)], "maxLength is 10 instead of 9"),
        (Annotated[str, Field(max_length=9)], str, "maxLength is none instead of 9"),
        (Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)], "minimum is 0 instead of 1"),
        (Decimal, str, rf"value has the pattern None instead of {DECIMAL!r}"),
        (Annotated[str, Field(pattern="^a")], Annotated[str, Field(pattern="^b")], "the pattern '^b' instead of '^a'"),
        (set[int], list[int], "value may have an item twice"),
        (Annotated[int, Field(multiple_of=6)], Annotated[int, Field(multiple_of=3)], "multipleOf is 3 instead of 6"),
        (Annotated[int, Field(multiple_of=6)], int, "multipleOf is none instead of 6"),
        (dict[uuid.UUID, int], dict[str, int], "value{name} has the format None instead of 'uuid'"),
        (Cat | Dog, Cat | Dog | Fish, "value may be the new object Fish, but it was Cat or Dog"),
        (Cat, Cat | Dog, "value may be the new object Dog, but it was Cat"),
    ],
)
def test_a_change_that_breaks_consumers(before: Any, after: Any, line: str):
    earlier = schemas_of(before)
    (found,) = set(find_breaking_changes(earlier, schemas_of(after)))
    assert found.startswith("a: value")
    assert found.endswith(line)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (int | None, int),
        (float, int),
        (Any, int),
        (int | str, str),
        (Small, Large),
        (list[Small], list[Large]),
        (Green, Colour),
        (str, Literal["a"]),
        (str, uuid.UUID),
        (Category, Category),
        (tuple[int], tuple[int, int]),
        (Annotated[str, Field(max_length=9)], Annotated[str, Field(max_length=8)]),
        (int, Annotated[int, Field(ge=0)]),
        (str, Decimal),
        (list[int], set[int]),
        (Annotated[int, Field(multiple_of=3)], Annotated[int, Field(multiple_of=6)]),
        (Annotated[float, Field(multiple_of=0.1)], Annotated[float, Field(multiple_of=0.2)]),
        (dict[str, int], dict[uuid.UUID, int]),
        (Cat | Dog | Fish, Dog | Cat),
    ],
)
def test_a_change_that_breaks_nothing(before: Any, after: Any):
    earlier = schemas_of(before)
    assert list(find_breaking_changes(earlier, schemas_of(after))) == []


def test_a_changed_template_of_the_key_breaks_consumers():
    earlier = schemas_of(int)
    later = json.loads(json.dumps(earlier))
    later["$defs"]["a"]["x-event"]["key"] = "customer-{customer}"
    (line,) = find_breaking_changes(earlier, later)
    assert line.startswith("a: its key is 'customer-{customer}' instead of ''")


def test_a_field_that_may_be_missing_breaks_consumers_and_the_reverse_does_not():
    always, sometimes = schemas_of(int), schemas_of(int, required=False)
    assert list(find_breaking_changes(always, sometimes)) == ["a: value may be missing"]
    assert list(find_breaking_changes(sometimes, always)) == []


def test_a_class_that_contains_itself_is_compared():
    earlier = schemas_of(Category)
    later = json.loads(json.dumps(earlier).replace('"name"', '"label"'))
    found = list(find_breaking_changes(earlier, later))
    assert found == ["a: value.name was removed", "a: value.parent.name was removed"]
