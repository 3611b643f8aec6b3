"""Values that still have to be run: coroutines are awaited in the transaction, generators are refused."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial, wraps
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import transaction

from django_outbox import OutboxMessage
from django_outbox.handlers import handler
from django_outbox.messages import Message, retry_later
from django_outbox.models import Status
from tests.conftest import ALIASES
from tests.support.effects import HANDLERS, deliver_once, drain, drain_all, effects, leave, states
from tests.support.messages import put, row

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]


@pytest.fixture
def using() -> str:
    """What is awaited, and where, does not depend on the database."""
    return "postgresql"


OUTBOX = {"PUBLISHERS": {"default": {**HANDLERS, "OPTIONS": {"batch_seconds": 60}}}}
"""The messages of a test are one batch, however busy the machine is."""

Function = Callable[..., Any]


def traced(function: Function) -> Function:
    """Decorate like a library that knows nothing of async functions."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call


async def work(using: str, payload: Any, message: Message) -> None:
    # Awaits what Django's async ORM does, on the relay's connection.
    await Group.objects.using(using).acreate(name=str(payload))


class Promise:
    """An awaitable that is not a coroutine."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.coroutine = coroutine

    def __await__(self) -> Any:
        return self.coroutine.__await__()


def _decorated(using: str) -> Function:
    @traced
    async def decorated(payload: Any, message: Message) -> None:
        await work(using, payload, message)

    return decorated


def _returning(function: Function) -> Function:
    async def returning(*arguments: Any) -> Any:
        return function(*arguments)

    return returning


ASYNC: dict[str, Callable[[str], Function]] = {
    "async def": lambda using: partial(work, using),
    "decorated": _decorated,
    "coroutine that returns one": lambda using: _returning(partial(work, using)),
    "awaitable": lambda using: lambda payload, message: Promise(work(using, payload, message)),
}


def generate(using: str) -> Function:
    def generator(payload: Any, message: Message, *error: Any) -> Iterator[None]:
        leave(using, payload)
        yield

    return generator


def generate_async(using: str) -> Function:
    async def generator(payload: Any, message: Message, *error: Any) -> AsyncIterator[None]:
        await work(using, payload, message)
        yield

    return generator


GENERATORS: dict[str, Callable[[str], Function]] = {
    "generator": generate,
    "async generator": generate_async,
    "coroutine that returns one": lambda using: _returning(generate(using)),
}


@pytest.mark.parametrize("time_limit", [None, 60], ids=["", "time limit"])
@pytest.mark.parametrize("make", ASYNC.values(), ids=ASYNC)
def test_what_is_to_be_awaited_runs_in_the_transaction_of_the_message(
    using: str, make: Callable[[str], Function], time_limit: float | None
):
    handler("t", name="work", time_limit=time_limit)(make(using))
    put(3, using)
    leave(using, 1)
    deliver_once(using)
    # The second one breaks a constraint, so it leaves nothing.
    assert sorted(effects(using)) == ["0", "1", "2"]
    assert states(using) == [Status.PROCESSED, Status.PENDING, Status.PROCESSED]
    assert "IntegrityError" in OutboxMessage.objects.using(using).pending().get().error_class


def test_an_outcome_that_is_awaited_counts(using: str):
    @handler("t")
    @traced
    async def closed(payload: Any, message: Message) -> Any:
        await sync_to_async(leave)(using, payload)
        return retry_later("the bank is closed")

    (id,) = put(1, using)
    deliver_once(using)
    assert (row(using, id).error, effects(using)) == ("the bank is closed", [])


def test_the_time_limit_includes_what_is_awaited_later(using: str):
    cancelled: list[bool] = []

    @handler("t", time_limit=0.3)
    @traced
    async def slow(payload: Any, message: Message) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    (id,) = put(1, using)
    deliver_once(using)
    assert cancelled == [True]
    assert row(using, id).error == "HandlerTimeout: the handler took longer than its time limit of 0.3 s"


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_the_message_of_a_handler_that_returns_a_generator_fails_at_once(using: str, make: Callable[[str], Function]):
    handler("t", name="work")(make(using))
    (id,) = put(1, using)
    drain(using)
    message = row(using, id)
    assert (message.status, message.attempts, message.error_class) == (Status.FAILED, 1, "outbox.not_run")
    assert "the handler work returned a" in message.error
    assert "which nothing runs" in message.error
    assert effects(using) == []


def test_a_handler_that_was_not_run_has_no_fallback(using: str):
    made = handler("t", name="work")(traced(generate(using)))
    made.fallback(lambda payload, message, error: leave(using, "cancelled"))
    put(1, using)
    drain(using)
    assert (states(using), effects(using)) == ([Status.FAILED], [])


def refuse(payload: Any, message: Message) -> None:
    raise KeyError(payload)


def test_a_fallback_that_is_to_be_awaited_runs(using: str):
    made = handler("t", name="work")(refuse)
    made.fallback(lambda payload, message, error: work(using, payload, message))
    put(1, using)
    drain_all(using)
    assert (states(using), effects(using)) == ([Status.PROCESSED], ["0"])


def test_a_fallback_that_returns_a_generator_fails(using: str):
    handler("t", name="work")(refuse).fallback(generate(using))
    (id,) = put(1, using)
    drain_all(using)
    message = row(using, id)
    assert (message.status, message.error_class, effects(using)) == (Status.FAILED, "KeyError", [])
    assert "then the fallback failed" in message.error
    assert "which nothing runs" in message.error


def test_a_function_on_commit_may_be_a_coroutine(using: str):
    done: list[str] = []

    async def note() -> None:
        done.append("awaited")
        await Group.objects.using(using).acreate(name="after")

    @handler("t")
    def hook(payload: Any, message: Message) -> None:
        transaction.on_commit(note, using=using)

    put(1, using)
    drain(using)
    assert (done, effects(using)) == (["awaited"], ["after"])


def test_a_function_on_commit_that_returns_a_generator_is_logged(using: str, caplog: pytest.LogCaptureFixture):
    @handler("t")
    def hook(payload: Any, message: Message) -> None:
        transaction.on_commit(partial(generate(using), payload, message), using=using)

    put(1, using)
    drain(using)
    assert states(using) == [Status.PROCESSED]
    assert "returned a generator, which nothing runs" in caplog.text
