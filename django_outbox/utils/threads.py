"""Threads that cannot keep the process from exiting, their database connections, and a fresh start after a fork."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from django.db import DatabaseError, InterfaceError, connections

T = TypeVar("T")

INTERRUPT_DELAY = 0.2 if sys.platform == "win32" else 1.0
"""Maximum time in seconds until a waiting thread notices Ctrl-C if that does not interrupt the wait. It never does on
Windows, and elsewhere not if another thread gets the signal, which Linux gives to the main thread first."""

_functions: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()
"""Objects that start over in a forked process, because their threads, locks and connections belong to the parent."""


class Threads:
    """Runs functions in parallel, each in a daemon thread, and keeps their exceptions.

    Daemon threads cannot keep the process from exiting. `ThreadPoolExecutor` waits for its threads when the interpreter
    exits, forever if one of them hangs.
    """

    def __init__(self, wakes: "SimpleQueue[None] | None" = None) -> None:
        self.errors: list[BaseException] = []
        self._started: list[threading.Thread] = []
        self._ended: list[threading.Thread] = []
        # Only wakes `wait`. Before Python 3.13, `Thread.join` treats a thread as ended if Ctrl-C interrupts it.
        self._wakes: SimpleQueue[None] = SimpleQueue() if wakes is None else wakes

    def start(self, work: Callable[[], object], *, name: str) -> None:
        work = like_caller(work)

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)
            finally:
                self._ended.append(thread)
                self._wakes.put(None)

        thread = threading.Thread(target=run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # Python 3.12 starts no threads while the process exits.
            if threading.main_thread().is_alive():
                raise
            run()
        self._started.append(thread)

    def wait(self, seconds: float | None = None, *, until: Callable[[], bool] = bool) -> bool:
        """Wait until all threads have ended; return False if the time or the condition, tested at wakes, came first."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while len(self._ended) < len(self._started):
            if until():
                return False
            left = INTERRUPT_DELAY if deadline is None else min(INTERRUPT_DELAY, deadline - time.monotonic())
            if left <= 0:
                return False
            with suppress(Empty):
                self._wakes.get(timeout=left)
        return True


def like_caller(work: Callable[[], object]) -> Callable[[], None]:
    """Return a function for a thread, whose connections begin with the tenants of the calling thread.

    The connections of a new thread begin in the public schema if the engine has a schema for each tenant, as
    django-tenants' has.
    """
    opened: list[Any] = [each for each in connections.all(initialized_only=True) if hasattr(each, "set_tenant")]
    chosen = {each.alias: (each.tenant, each.include_public_schema) for each in opened}

    def run() -> None:
        with unrecorded():
            for alias, tenant in chosen.items():
                connections[alias].set_tenant(*tenant)  # type: ignore[attr-defined]
            work()

    return run


@contextmanager
def unrecorded() -> Iterator[None]:
    """Let OpenTelemetry's instrumentations record nothing: each statement and request would be a trace."""
    if "opentelemetry.context" not in sys.modules:
        yield
        return
    # Another thread may not have finished the import.
    context = import_module("opentelemetry.context")
    token = context.attach(context.set_value("suppress_instrumentation", True))
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def in_background(work: Callable[[threading.Event], object], *, name: str, patience: float) -> Iterator[None]:
    """Call a function in a thread until the end of the block, which waits for it up to `patience` seconds."""
    left, threads = threading.Event(), Threads()
    threads.start(lambda: work(left), name=name)
    try:
        yield
    finally:
        left.set()
        threads.wait(patience)


@contextmanager
def own_connection(using: str) -> Iterator[None]:
    """Give the current thread its own database connection until the end of the block.

    It does not come from a connection pool: a relay's thread keeps its connection as long as it lives, and would take
    it away from the rest of the process. All connections that the thread has opened are closed at the end.
    """
    connection: Any = connections[using]
    if connection.settings_dict["OPTIONS"].get("pool"):
        unpooled = connection.copy()
        del unpooled.settings_dict["OPTIONS"]["pool"]
        if hasattr(connection, "set_tenant"):
            unpooled.set_tenant(connection.tenant, connection.include_public_schema)
        connections[using] = unpooled
    try:
        yield
    finally:
        with suppress(DatabaseError, InterfaceError):
            connections.close_all()


def after_fork(subject: T, start_over: Callable[[T], object]) -> None:
    """Call a function with an object in each process forked from this one, for as long as the object exists.

    It makes the object forget what belongs to the parent, without ending it. The object's own method would keep the
    object alive.
    """
    _functions[subject] = start_over


def _start_over() -> None:
    for subject, start_over in [*_functions.items()]:
        start_over(subject)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_over)
