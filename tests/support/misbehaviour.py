"""A publisher that misbehaves by a test's script, alongside one that behaves and must not be affected."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django_outbox import OutboxMessage
from django_outbox.brokers import Publisher
from django_outbox.messages import ACCEPTED, Message, Outcome
from tests.support.messages import put
from tests.support.waiting import eventually

BAD = {"BACKEND": f"{__name__}.Misbehaving"}
SOON = {"DELAY": 0.01, "MAX_DELAY": 0.02, "MAX_ATTEMPTS": 3}


class Misbehaving(Publisher):
    """Publishes by `Misbehaving.script`, and counts the calls."""

    script: ClassVar[Callable[[Sequence[Message]], Any]]
    calls: ClassVar[int] = 0

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        Misbehaving.calls += 1
        outcomes: Sequence[Outcome] = Misbehaving.script(messages)
        return outcomes


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


class Hostile(Exception):
    """Wants to end the process when it is shown."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Verdictless:
    """Says that it equals an outcome, and has none of its attributes."""

    def __eq__(self, other: object) -> bool:
        raise SystemExit(4)

    __hash__ = object.__hash__


def publish_by(script: Callable[[Sequence[Message]], Any]) -> None:
    Misbehaving.script = staticmethod(script)


def processed(publisher: str) -> int:
    return OutboxMessage.objects.processed().filter(publisher=publisher).count()


def assert_others_go_on() -> None:
    """Enqueue messages for the publisher that behaves, and wait until the relay has delivered them."""
    before = processed("default")
    put(3)
    eventually(lambda: processed("default") == before + 3)


def raising(error: BaseException) -> Callable[[Sequence[Message]], Any]:
    def script(messages: Sequence[Message]) -> Any:
        raise error

    return script


def instead_of_first(wrong: Any) -> Callable[[Sequence[Message]], Any]:
    """Return a script that accepts all messages, but returns something else for the one with the payload 0."""
    return lambda messages: [wrong if message.payload == b"0" else ACCEPTED for message in messages]
