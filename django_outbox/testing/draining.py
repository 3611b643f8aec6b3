"""Deliver in a test, and report what failed with the exception that a handler raised."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from django_outbox.messages import ACCEPTED, Message, Outcome, Verdict
from django_outbox.models import OutboxMessage
from django_outbox.relay import Relay
from django_outbox.tracing import PublishedBatch, add_tracer, remove_tracer
from django_outbox.wording import counted


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
        failures: those that were not, with the result of their last attempt.
    """

    processed: tuple[Message, ...]
    failures: tuple[DrainFailure, ...]


def drain_outbox(using: str, *, raise_failures: bool, max_seconds: float) -> Drained:
    """Deliver what is due.

    Raises:
        AssertionError: a message was not accepted; its cause is the exception of the handler.
        RelayUnavailable: a publisher or the database was unavailable.
    """
    with _recorded() as recorder, Relay(using=using) as relay:
        relay.drain(max_seconds=max_seconds)
    drained = recorder.result()
    if raise_failures and drained.failures:
        listed = "\n".join(f"  {failure}" for failure in drained.failures)
        causes = [failure.cause for failure in drained.failures if failure.cause is not None]
        error = AssertionError(f"{counted(len(drained.failures), 'message')} not processed:\n{listed}")
        raise error from (causes[0] if causes else None)
    return drained


class _Recorder:
    """Keeps the last outcome of each message."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Message, Outcome, bool]] = {}

    def enqueueing(self, messages: Sequence[OutboxMessage], *, many: bool) -> AbstractContextManager[Mapping[str, str]]:
        return nullcontext({})

    def published(self, batch: PublishedBatch) -> None:
        for message, outcome in zip(batch.messages, batch.outcomes, strict=True):
            if outcome.verdict is not Verdict.BLOCKED:
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


@contextmanager
def _recorded() -> Iterator[_Recorder]:
    recorder = _Recorder()
    add_tracer(recorder)
    try:
        yield recorder
    finally:
        remove_tracer(recorder)
