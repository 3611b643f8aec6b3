"""Deliver in a test: publishers in memory, and a report of failures with the exceptions that handlers raised."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django_outbox.brokers import memory
from django_outbox.messages import ACCEPTED, Message, Outcome, OutcomeKind
from django_outbox.relay import Relay
from django_outbox.tracing import PublishedBatch, Tracer, tracers
from django_outbox.utils.text import counted


@contextmanager
def memory_publishers() -> Iterator[None]:
    """Replace each publisher by a `MemoryPublisher`, except publishers that call handlers.

    This holds in all threads, whatever is in `OUTBOX`, and for publishers that were made earlier.
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
    """A message that was not processed.

    Args:
        message: the message as the publisher got it.
        error: the reason, as text.
        cause: the exception that a handler raised, if any.
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


def drain_outbox(using: str, *, raise_failures: bool, max_seconds: float) -> Drained:
    recorder = _OutcomeTracer()
    tracers.append(recorder)
    try:
        with Relay(using=using) as relay:
            relay.drain(max_seconds=max_seconds)
    finally:
        tracers.remove(recorder)
    drained = recorder.result()
    if raise_failures and drained.failures:
        listed = "\n".join(f"  {failure}" for failure in drained.failures)
        causes = [failure.cause for failure in drained.failures if failure.cause is not None]
        error = AssertionError(f"{counted(len(drained.failures), 'message')} not processed:\n{listed}")
        raise error from (causes[0] if causes else None)
    return drained


class _OutcomeTracer(Tracer):
    def __init__(self) -> None:
        self._last: dict[int, tuple[Message, Outcome, bool]] = {}

    def published(self, batch: PublishedBatch) -> None:
        for message, outcome in zip(batch.messages, batch.outcomes, strict=True):
            if outcome.kind is not OutcomeKind.BLOCKED:
                self._last[message.id] = message, outcome, message.id in batch.failed

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
