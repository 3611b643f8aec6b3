"""The registered handlers, by the types of the messages that they handle."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from django_outbox.conf.readers import Mistake, read_value
from django_outbox.conf.retry import read_entry
from django_outbox.events.registry import event_type_of
from django_outbox.messages import Message, Outcome
from django_outbox.retry import RetryEntry, is_number

P = ParamSpec("P")
R = TypeVar("R")

MAX_NAME_LENGTH = 150
"""Maximum bytes of a handler's name in UTF-8: it is part of the key of a message that was split among handlers."""

MAX_TIME_LIMIT = 86_400
"""Maximum time limit in seconds."""


class Handler(Generic[P, R]):
    """A registered function. It can be called like the function itself, for example in a test.

    Args:
        function: the function, called with the event or the payload, and the message.
        types: the types of the messages that it handles.
        name: identifies it in messages of types that have several handlers.
        time_limit: maximum number of seconds of a call; None for the publisher's.
        retry: the retry policy; None for the publisher's.

    Attributes:
        fallback_function: called when a message fails.
        recorder: called after an attempt that was not accepted, in the transaction that writes the message's new state,
            with the event or payload, the message, the outcome, whether the message fails, and the database alias.
        finisher: called after an attempt that was accepted, in the transaction that writes the message's new state,
            with the message and the database alias.
    """

    def __init__(
        self,
        function: Callable[P, R],
        types: tuple[str, ...],
        name: str = "",
        time_limit: float | None = None,
        retry: RetryEntry | None = None,
    ) -> None:
        self.function = function
        self.types = types
        self.name = name or f"{function.__module__}.{function.__qualname__}"
        self.time_limit = time_limit
        self.retry = retry
        self.fallback_function: Callable[..., Any] | None = None
        self.recorder: Callable[[Any, Message, Outcome, bool, str], None] | None = None
        self.finisher: Callable[[Message, str], None] | None = None
        self.__name__ = ""
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Handler {self.name}>"

    @property
    def place(self) -> str:
        """The module and the line of the function's definition, such as `shop.handlers:12`."""
        module, _, _, line = _origin(self)
        return f"{module}:{line}" if line else str(module)

    def fallback(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register a function that is called when a message fails in this handler; a decorator.

        It is called with the event or payload, the message, whose `attempts` then counts all attempts, and the
        exception of the last one. It runs in a transaction if the handler does. If it returns, the message is
        processed. If it raises, the message fails, with both errors.
        """
        self.fallback_function = function
        return function


AnyHandler = Handler[..., Any]


class HandlerRegistry:
    """The handlers by name and by type.

    Attributes:
        direct: the handlers that handle the messages of a type directly, by type. A handler that shares any of its
            types with another one gets all its messages split, because otherwise a direct message could overtake an
            earlier one of the same key.
        duplicates: the handlers that were refused; a system check reports them.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, AnyHandler] = {}
        self._by_type: dict[str, list[AnyHandler]] = {}
        self.direct: dict[str, AnyHandler] = {}
        self.duplicates: list[AnyHandler] = []

    def __iter__(self) -> Iterator[AnyHandler]:
        return iter([*self._by_name.values()])

    def add(self, new: AnyHandler) -> None:
        """Register a handler. If another one has its name, the first one stays, and a system check reports the second.

        The same holds for a definition whose module is imported under two names, or each effect would happen twice.

        A definition that is executed again, in a function that is called twice or a module that is loaded again,
        replaces its earlier handler.
        """
        known = self._by_name.get(new.name)
        if known is not None and (new.types, _origin(new)) != (known.types, _origin(known)):
            self.duplicates.append(new)
            return
        if known is None and self.find_twin(new) is not None:
            self.duplicates.append(new)
            return
        self._by_name[new.name] = new
        for type in new.types:
            if known is None:
                self._by_type.setdefault(type, []).append(new)
            else:
                self._by_type[type] = [new if each is known else each for each in self._by_type[type]]
        self._find_direct()

    def find_twin(self, new: AnyHandler) -> AnyHandler | None:
        """Return the handler with the same definition as another one, whose module has another name."""
        module, *place = _origin(new)
        if place[1] is None:
            return None
        for known in self.for_type(new.types[0]):
            other, *known_place = _origin(known)
            if other != module and known_place == place and known.types == new.types:
                return known
        return None

    def find(self, name: str) -> AnyHandler | None:
        return self._by_name.get(name)

    def for_type(self, type: str) -> list[AnyHandler]:
        return self._by_type.get(type, [])

    def _find_direct(self) -> None:
        shared = {type for type, handlers in self._by_type.items() if len(handlers) > 1}
        alone = [each for each in self if shared.isdisjoint(each.types)]
        self.direct = {type: each for each in alone for type in each.types}

    @contextmanager
    def isolated(self) -> Iterator["HandlerRegistry"]:
        """Restore the registered handlers at the end; for tests. Handlers of newly imported modules stay."""
        saved = {**self._by_name}, {type: [*each] for type, each in self._by_type.items()}, [*self.duplicates]
        modules = {*sys.modules}
        try:
            yield self
        finally:
            # A module that was removed again will be imported again.
            imported = [each for each in self if each.__module__ in sys.modules.keys() - modules]
            self._by_name, self._by_type, self.duplicates = saved
            self._find_direct()
            for each in imported:
                self.add(each)


registry = HandlerRegistry()


def _origin(checked: AnyHandler) -> tuple[object, ...]:
    """Return the identity of the definition of a handler's function."""
    function = inspect.unwrap(checked.function)
    code = getattr(function, "__code__", None)
    names = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return *names, getattr(code, "co_filename", None), getattr(code, "co_firstlineno", None)


def handler(
    *types: str | type,
    name: str = "",
    time_limit: float | None = None,
    retry: RetryEntry | None = None,
) -> Callable[[Callable[P, R]], Handler[P, R]]:
    """Register a function that handles messages of one or several types; a decorator.

    The function is called as `function(event, message)`, with the event if the type is registered with `@event`,
    otherwise the decoded payload, and the `django_outbox.messages.Message`. If it raises an exception, what it wrote in
    the transaction is rolled back and the message is retried. It may raise `Reject` or `RetryLater`, or return an
    outcome: `retry_later(...)`, `set_aside(...)` or `rejected(...)`. If it returns a coroutine, as an `async def` does,
    that is awaited.

    Args:
        types: the types of messages, such as `order.created`, or event classes; at least one.
        name: a name that stays the same if the function is renamed or moved; at most 150 bytes. Defaults to its import
            path.
        time_limit: maximum number of seconds of a call, greater than 0.
        retry: the retry policy, such as `{"MAX_ATTEMPTS": 3, "EXCLUDE": [CardDeclined]}`: the keys of
            `OUTBOX["RETRY"]` without `TYPES`. Its keys take precedence over the publisher's.

    Raises:
        TypeError: there is no type, one is neither a string nor an event class, or the name is not a string.
        ValueError: the name or the time limit is out of range, or the retry policy is wrong.
    """
    if not types:
        raise TypeError('@handler needs the type of its messages: @handler("order.created").')
    if not isinstance(name, str):
        raise TypeError(f"@handler: name is {name!r}; it must be a string.")
    names = tuple(dict.fromkeys(type_of(each) for each in types))
    if time_limit is not None:
        _check_time_limit(time_limit)
    policy = None if retry is None else _read_retry(retry)

    def register(function: Callable[P, R]) -> Handler[P, R]:
        if not hasattr(function, "__qualname__") and not name:
            raise ValueError("@handler: a callable without a __qualname__ needs a name=.")
        made = Handler(function, names, name, time_limit, policy)
        if len(made.name.encode()) > MAX_NAME_LENGTH:
            raise ValueError(
                f"The handler's name {made.name!r} is longer than {MAX_NAME_LENGTH} bytes. Give it a shorter one: "
                '@handler(..., name="send_receipt").'
            )
        registry.add(made)
        return made

    return register


def _check_time_limit(seconds: object) -> None:
    if not is_number(seconds) or not 0 < seconds <= MAX_TIME_LIMIT:
        raise ValueError(
            f"time_limit is {seconds!r}; it must be a number of seconds greater than 0, at most {MAX_TIME_LIMIT:,}."
        )


def _read_retry(value: object) -> RetryEntry:
    mistakes: list[Mistake] = []
    entry: RetryEntry = read_value(read_entry, value, "retry", mistakes)
    if mistakes:
        raise ValueError("@handler: " + " ".join(f"{mistake.message} {mistake.hint}" for mistake in mistakes))
    return entry


def type_of(given: object) -> str:
    """Return the type of a string or an event class."""
    if isinstance(given, type):
        return event_type_of(given).type
    if callable(given):
        raise TypeError('@handler needs the type of its messages. Write @handler("order.created").')
    if not isinstance(given, str) or not given:
        raise TypeError(
            f"{given!r} is neither the type of a message, such as 'order.created', nor a class with @event."
        )
    return given
