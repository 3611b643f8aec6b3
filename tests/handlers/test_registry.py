"""The registration of handlers, their discovery, and the system checks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.test import override_settings

from django_outbox.brokers.outcomes import describe_publisher
from django_outbox.checks.handlers import check_handler_functions, check_handlers
from django_outbox.checks.settings import check_settings
from django_outbox.events import event
from django_outbox.handlers import Handler, HandlersPublisher, handler
from django_outbox.handlers.registry import HandlerRegistry
from django_outbox.messages import Message
from tests.support.effects import HANDLERS

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = pytest.mark.usefixtures("handlers", "no_events")


MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}


@event("test_registry.order_created")
@dataclass
class OrderCreated:
    id: int


class Derived(OrderCreated):
    """Is not decorated itself."""


def make(name: str = "work", *types: str) -> Handler[..., Any]:
    @handler(*(types or ("t",)), name=name)
    def work(payload: Any, message: Message) -> Any:
        return payload

    return work


def ids(messages: list[CheckMessage]) -> list[str]:
    return [str(message.id).removeprefix("django_outbox.") for message in messages]


def test_a_handler_can_be_called_like_its_function():
    work = make()
    assert work(7, None) == 7
    assert work.__name__ == "work"
    assert repr(work) == "<Handler work>"


def test_the_name_of_a_handler_is_its_import_path_by_default():
    @handler("t")
    def work(payload: Any, message: Message) -> None: ...

    assert work.name.endswith("test_registry.test_the_name_of_a_handler_is_its_import_path_by_default.<locals>.work")


def test_an_event_class_stands_for_its_type(handlers: HandlerRegistry):
    @handler(OrderCreated, "order.paid")
    def work(payload: Any, message: Message) -> None: ...

    assert handlers.for_type("test_registry.order_created") == handlers.for_type("order.paid") == [work]


def test_a_class_that_is_not_decorated_itself_is_refused():
    with pytest.raises(TypeError, match="Derived is not an event"):
        handler(Derived)


def test_messages_are_split_where_one_handler_of_their_type_shares_another_type(handlers: HandlerRegistry):
    both, other = make("both", "a", "b"), make("other", "b", "c")
    alone = make("alone", "d")
    assert handlers.direct == {"d": alone}
    assert handlers.for_type("b") == [both, other]


@pytest.mark.parametrize(
    ("register", "error"),
    [
        (handler, TypeError),
        (lambda: handler(make), TypeError),  # type: ignore[arg-type]
        (lambda: handler(int), TypeError),
        (lambda: handler(""), TypeError),
        (lambda: handler(7), TypeError),  # type: ignore[arg-type]
        (lambda: handler("t", name=7), TypeError),  # type: ignore[arg-type]
        (lambda: handler("t", time_limit=0), ValueError),
        (lambda: handler("t", time_limit=float("nan")), ValueError),
        (lambda: handler("t", time_limit="1"), ValueError),  # type: ignore[arg-type]
        (lambda: make("n" * 151), ValueError),
        (lambda: handler("t")(partial(print)), ValueError),
    ],
)
def test_a_wrong_registration_fails_at_once(register: Callable[[], object], error: type[Exception]):
    with pytest.raises(error):
        register()


def test_two_handlers_of_one_name_are_reported_and_the_first_one_stays(handlers: HandlerRegistry):
    first = make("same")
    make("same", "u")
    assert ids(check_handler_functions(None)) == ["E025"]
    assert handlers.find("same") is first
    assert handlers.for_type("u") == []


def test_a_definition_that_is_executed_again_replaces_its_handler(handlers: HandlerRegistry):
    first, other, second = make(), make("other"), make()
    assert handlers.find("work") is second
    assert handlers.for_type("t") == [second, other]
    assert first not in [*handlers]
    assert ids(check_handler_functions(None)) == []


def test_two_definitions_of_one_name_in_one_module_are_reported(handlers: HandlerRegistry):
    @handler("t", name="work")
    def work(payload: Any, message: Message) -> None: ...

    first = work

    @handler("t", name="work")  # type: ignore[no-redef]
    def work(payload: Any, message: Message) -> None: ...

    assert ids(check_handler_functions(None)) == ["E025"]
    assert handlers.find("work") is first


@pytest.mark.parametrize("name", ["", "work"])
def test_a_file_that_is_imported_as_two_modules_is_reported_and_its_handlers_registered_once(
    handlers: HandlerRegistry, tmp_path: Path, name: str
):
    path = tmp_path / "handlers.py"
    path.write_text(
        f"from django_outbox.handlers import handler\n@handler('t', name={name!r})\ndef work(payload, message): ...\n"
    )

    def load(module: str) -> None:
        spec = spec_from_file_location(module, path)
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(module_from_spec(spec))

    for module in ("shop.handlers", "project.shop.handlers", "shop.handlers"):
        load(module)
    assert len(handlers.for_type("t")) == 1
    (problem,) = check_handler_functions(None)
    assert problem.id == "django_outbox.E025"
    assert "shop.handlers.work and project.shop.handlers.work" in problem.msg
    assert "one name everywhere" in str(problem.hint)


def test_a_factory_may_register_the_same_code_several_times(handlers: HandlerRegistry):
    for number in range(3):
        make(f"h{number}")
    assert len(handlers.for_type("t")) == 3
    assert check_handler_functions(None) == []


@pytest.mark.parametrize(("type", "found"), [("order.*", ["W027"]), ("order.?", ["W027"]), ("order.created", [])])
def test_a_pattern_instead_of_a_type_is_reported(type: str, found: list[str]):
    make("work", type)
    assert ids(check_handler_functions(None)) == found


async def good(event: Any, message: Message) -> None: ...
def generator(event: Any, message: Message) -> Any:
    yield


class Generator:
    def __call__(self, event: Any, message: Message) -> Any:
        yield


async def generator_of_async(event: Any, message: Message) -> Any:
    yield


@pytest.mark.parametrize(
    ("function", "fallback", "found"),
    [
        (good, None, []),
        (print, None, []),
        (lambda event, message, *, more=1: None, None, []),
        (lambda event: None, None, ["E026"]),
        (lambda: None, None, ["E026"]),
        (generator, None, ["E026"]),
        (generator_of_async, None, ["E026"]),
        (partial(generator), None, ["E026"]),
        (Generator(), None, ["E026"]),
        (Generator().__call__, None, ["E026"]),
        (good, lambda event, message, error: (yield), ["E026"]),
        (partial(good), None, []),
        (lambda event, message, *, more: None, None, ["E026"]),
        (good, lambda event, message: None, ["E026"]),
        (good, lambda event, message, error: None, []),
    ],
)
def test_a_function_with_the_wrong_parameters_is_reported(
    function: Callable[..., Any], fallback: Callable[..., Any] | None, found: list[str]
):
    made = handler("t", name="work")(function)
    if fallback:
        made.fallback(fallback)
    assert ids(check_handler_functions(None)) == found


def test_handlers_that_no_publisher_calls_are_reported():
    make()
    assert ids(check_handlers(None)) == []
    with override_settings(OUTBOX={"PUBLISHERS": {"default": MEMORY}}):
        assert ids(check_handlers(None)) == ["W025"]
    with override_settings(OUTBOX={"PUBLISHERS": {"default": {"BACKEND": "no.such.thing"}}}):
        assert ids(check_handlers(None)) == ["W025"]


def both_with(routes: dict[str, list[str]], **more: Any) -> Any:
    return override_settings(OUTBOX={"PUBLISHERS": {"default": MEMORY, "handlers": HANDLERS}, "ROUTES": routes, **more})


def test_a_handler_that_no_route_reaches_is_reported():
    make("receipt", "order.created", "order.paid")
    with both_with({"order.paid": ["default", "handlers"]}):
        (problem,) = check_handlers(None)
        assert (problem.id, problem.msg) == (
            "django_outbox.W051",
            "The handler receipt handles order.created, which goes to 'default' only, so the handler is never called.",
        )
        assert problem.hint is not None
        assert problem.hint.startswith('Add "order.created": ["default", "handlers"] to OUTBOX[\'ROUTES\']')
    with both_with({"order.*": ["default", "handlers"]}):
        assert check_handlers(None) == []
    consumer = {"BACKEND": "django_outbox.brokers.redis.RedisStreamsConsumer"}
    with both_with({"order.paid": ["handlers"]}, CONSUMERS={"billing": consumer}):
        assert check_handlers(None) == []


def test_what_is_routed_to_handlers_without_one_is_reported_with_the_closest_type():
    @event("routed.order_created", publisher="handlers")
    @dataclass
    class Routed:
        id: int

    make("receipt", "routed.order_craeted")
    with both_with({"routed.*": ["handlers"], "order.paid": ["default", "handlers"]}):
        problems = [
            (problem.msg, problem.hint) for problem in check_handlers(None) if problem.id == "django_outbox.W052"
        ]
    assert [message for message, _ in problems] == [
        "The type order.paid goes to 'handlers', but no handler is registered for it, so its messages fail.",
        "The event routed.order_created goes to 'handlers', but no handler is registered for it, so its messages fail.",
    ]
    assert [str(hint).startswith("Did you mean 'routed.order_craeted'? ") for _, hint in problems] == [False, True]
    skipping = {"default": MEMORY, "handlers": {**HANDLERS, "OPTIONS": {"unhandled": "skip"}}}
    with override_settings(OUTBOX={"PUBLISHERS": skipping, "ROUTES": {"*": ["handlers"]}}):
        assert check_handlers(None) == []


def test_handlers_are_no_dead_letter_publisher():
    outbox = {"PUBLISHERS": {"default": MEMORY, "handlers": HANDLERS}, "DEAD_LETTER_PUBLISHER": "handlers"}
    with override_settings(OUTBOX=outbox):
        assert ids(check_handlers(None)) == ["E027"]


def test_the_publisher_publishes_only_in_a_relay():
    with pytest.raises(TypeError, match="delivers messages only in a relay"):
        HandlersPublisher("handlers").publish([])


@pytest.mark.parametrize(("count", "text"), [(0, "0 local handlers"), (1, "1 local handler"), (2, "2 local handlers")])
def test_the_publisher_describes_itself_by_the_number_of_handlers(count: int, text: str):
    for number in range(count):
        make(f"h{number}")
    assert describe_publisher(HandlersPublisher("handlers")) == text


@pytest.mark.parametrize(
    "entry",
    [
        {"OPTIONS": {"unhandled": "ignore"}},
        {"OPTIONS": {"time_limit": 0}},
        {"OPTIONS": {"time_limit": True}},
        {"OPTIONS": {"batch_seconds": "1"}},
        {"OPTIONS": {"colour": "red"}},
        {"BATCH_SIZE": 0},
        {"BATCH_SIZE": "20"},
    ],
)
def test_a_wrong_option_is_reported(entry: dict[str, Any]):
    with override_settings(OUTBOX={"PUBLISHERS": {"default": {**HANDLERS, **entry}}}):
        assert ids(check_settings(None)) == ["E005" if "BATCH_SIZE" in entry else "E008"]


def test_a_handler_without_parentheses_is_told_what_to_write():
    def receive(event: object, message: object) -> None: ...

    with pytest.raises(
        TypeError, match=r'@handler needs the type of its messages\. Write @handler\("order\.created"\)\.'
    ):
        handler(receive)  # type: ignore[arg-type]
