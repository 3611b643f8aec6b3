"""Deliver in a test: publishers in memory, and a report of failures with the exceptions that handlers raised."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django_outbox.brokers import memory
from django_outbox.conf import get_settings
from django_outbox.messages import ACCEPTED, Message, Outcome, OutcomeKind, rejected
from django_outbox.relay import Relay
from django_outbox.tracing import PublishedBatch, Tracer, add_tracer, remove_tracer
from django_outbox.utils.text import counted, describe


@contextmanager
def memory_publishers() -> Iterator[None]:
    """Replace each publisher by a `MemoryPublisher`, except publishers that call handlers.

    This holds in all threads, whatever `OUTBOX` says, and for publishers that were made earlier.
    `django_outbox.brokers.memory.published` is empty at the beginning.
    """
    memory.published.clear()
    memory.open_blocks.append(None)
    try:
        yield
    finally:
        memory.open_blocks.pop()


@dataclass(frozen=True, slots=True)
class DrainFailure:
    """A message that was not processed, or the call of a Celery task that has raised an exception.

    Args:
        message: the message as the publisher got it.
        error: the reason, as text.
        cause: the exception that a handler or a task raised, if any.
        failed: whether the message has failed; otherwise it waits for its next attempt.
    """

    message: Message
    error: str
    cause: BaseException | None
    failed: bool

    def __str__(self) -> str:
        state = "failed" if self.failed else "will be retried"
        return f"{self.message.type} (id {self.message.id}) {state}: {self.error}"


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of a drain.

    Args:
        processed: the messages that were accepted, in their order.
        failures: the other messages, with the result of their last attempt.
    """

    processed: tuple[Message, ...]
    failures: tuple[DrainFailure, ...]


def drain_outbox(using: str, *, raise_failures: bool, max_seconds: float, run_tasks: bool) -> Drained:
    """Deliver the messages that are due, as `Outbox.drain` does."""
    ends_at = time.monotonic() + max_seconds
    recorder = _OutcomeTracer()
    add_tracer(recorder)
    try:
        while True:
            with Relay(using=using) as relay:
                relay.drain(max_seconds=max(ends_at - time.monotonic(), 0))
            if not (run_tasks and recorder.run_calls()) or time.monotonic() > ends_at:
                break
    finally:
        remove_tracer(recorder)
    drained = recorder.result()
    if raise_failures and drained.failures:
        listed = "\n".join(f"  {failure}" for failure in drained.failures)
        causes = [failure.cause for failure in drained.failures if failure.cause is not None]
        error = AssertionError(f"{counted(len(drained.failures), 'message')} not processed:\n{listed}")
        raise error from (causes[0] if causes else None)
    return drained


class _OutcomeTracer(Tracer):
    """Keeps the last outcome of each message."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Message, Outcome, bool]] = {}
        self._calls: list[tuple[Message, str]] = []

    def published(self, batch: PublishedBatch) -> None:
        for message, outcome in zip(batch.messages, batch.outcomes, strict=True):
            if outcome.kind is not OutcomeKind.BLOCKED:
                self._last[message.id] = message, outcome, message.id in batch.failed
            if outcome is ACCEPTED:
                self._calls.append((message, batch.publisher_alias))

    def run_calls(self) -> bool:
        """Run the Celery tasks that were published since the last time; return whether there were any."""
        from django_outbox.testing import celery_calls  # noqa: PLC0415 - needs Celery

        published, self._calls = self._calls, []
        was_run = False
        for message, publisher_alias in published:
            call = celery_calls.read_call(message)
            if call is not None:
                was_run = True
                app_path = get_settings().publishers[publisher_alias].options.get("app")
                error = celery_calls.run(call, app_path)
                if error is not None:
                    self._last[message.id] = message, rejected(describe(error), cause=error), True
        return was_run

    def result(self) -> Drained:
        last = self._last.values()
        return Drained(
            tuple(message for message, outcome, _ in last if outcome is ACCEPTED),
            tuple(
                DrainFailure(message, outcome.error, outcome.cause, failed)
                for message, outcome, failed in last
                if outcome is not ACCEPTED
            ),
        )
