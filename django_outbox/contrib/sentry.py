"""Sentry: a failed message is an issue, and messages carry the trace in which they were enqueued.

    sentry_sdk.init(dsn="...", integrations=[OutboxIntegration()])

It needs the extra `sentry`.
"""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import sentry_sdk
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import add_global_event_processor
from sentry_sdk.tracing import Span
from sentry_sdk.tracing_utils import has_tracing_enabled

from django_outbox.messages import Message, Verdict
from django_outbox.rates import Allowance
from django_outbox.signals import Failure, messages_failed
from django_outbox.tracing import PublishedBatch, Tracer, add_tracer, trace_headers

if TYPE_CHECKING:
    from sentry_sdk._types import Event, Hint

    from django_outbox.models import OutboxMessage

__all__ = ["OutboxIntegration"]

TRACE_HEADER = "sentry-trace"
BAGGAGE_HEADER = "baggage"

FAILED_LINE = "Publisher %r: %s failed ("
"""The beginning of the relay's log line about failed messages, which Sentry would report as another issue."""


class OutboxIntegration(Integration):
    """Reports failed messages, and passes traces on, with the Sentry SDK.

    Args:
        failures: whether failed messages are reported.
        events_per_minute: maximum number of events about failures that a process sends in a minute.
        propagate_traces: whether `enqueue` adds the headers `sentry-trace` and `baggage`.
        transactions_per_second: maximum number of transactions for published messages that a process sends in a second;
            0 sends none. Only messages of sampled traces have one, and `traces_sample_rate` must be set.
    """

    identifier = "django_outbox"
    origin = f"auto.queue.{identifier}"

    def __init__(
        self,
        *,
        failures: bool = True,
        events_per_minute: int = 60,
        propagate_traces: bool = True,
        transactions_per_second: int = 10,
    ) -> None:
        self.failures = failures
        self.propagate_traces = propagate_traces
        self.events = Allowance(events_per_minute, 60.0)
        self.transactions = Allowance(transactions_per_second, 1.0)

    @staticmethod
    def setup_once() -> None:
        """Connect the signal and the tracing hooks. The SDK calls it once."""
        messages_failed.connect(report_failures, dispatch_uid="django_outbox.contrib.sentry")
        add_tracer(SentryTracer())
        add_global_event_processor(drop_failed_line)


def report_failures(*, using: str, publisher: str, failures: Sequence[Failure], **_: object) -> None:
    """Send an event for each type and error class in a batch, as many as the integration permits."""
    integration = _find_integration()
    if integration is None or not integration.failures:
        return
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        groups.setdefault((failure.message.type, failure.error_class), []).append(failure)
    for members in groups.values():
        if not integration.events.take():
            return
        _send_failure(using, publisher, members[0], len(members))


def drop_failed_line(event: "Event", hint: "Hint") -> "Event | None":
    """Drop Sentry's event for the relay's log line about failed messages, because there is a better one."""
    integration = _find_integration()
    if integration is None or not integration.failures or event.get("logger") != "django_outbox":
        return event
    template = (event.get("logentry") or {}).get("message")
    return None if isinstance(template, str) and template.startswith(FAILED_LINE) else event


class SentryTracer(Tracer):
    """Adds Sentry's headers to messages, and sends a transaction for a published message of a sampled trace."""

    def enqueueing(
        self, messages: "Sequence[OutboxMessage]", *, many: bool
    ) -> AbstractContextManager[Mapping[str, str]]:
        """Yield `sentry-trace` and `baggage` for messages without them; within a transaction, of a separate span."""
        integration = _find_integration()
        new = [message for message in messages if TRACE_HEADER not in message.headers]
        if integration is None or not integration.propagate_traces or not new:
            return nullcontext({})
        if not isinstance(sentry_sdk.get_current_span(), Span):
            return nullcontext(dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers()))
        return self._publishing(new, many)

    def published(self, batch: PublishedBatch) -> None:
        """Send transactions for failures first, then for other messages, as many as the integration permits."""
        integration = _find_integration()
        if integration is None or not _sends_transactions(sentry_sdk.get_client().options):
            return
        for message, outcome in batch.sampled(lambda headers: str(headers.get(TRACE_HEADER)).endswith("-1")):
            if not integration.transactions.take():
                return
            self._send_transaction(message, outcome.verdict, batch)

    @contextmanager
    def _publishing(self, messages: "Sequence[OutboxMessage]", many: bool) -> Iterator[Mapping[str, str]]:
        first = messages[0]
        with sentry_sdk.start_span(
            op="queue.publish", name=first.topic or first.type, origin=OutboxIntegration.origin
        ) as span:
            span.set_data("messaging.system", "django_outbox")
            span.set_data("messaging.destination.name", first.topic or first.type)
            if many:
                span.set_data("messaging.batch.message_count", len(messages))
            else:
                span.set_data("messaging.message.id", str(first.message_id))
            yield dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers(span=span))

    def _send_transaction(self, message: Message, verdict: Verdict, batch: PublishedBatch) -> None:
        destination = batch.name_destination(message)
        with sentry_sdk.isolation_scope():
            transaction = sentry_sdk.continue_trace(
                trace_headers(message, TRACE_HEADER, BAGGAGE_HEADER),
                op="queue.publish",
                name=f"publish {destination}",
                source="task",
                origin=OutboxIntegration.origin,
            )
            transaction.start_timestamp = _time(batch.began_at)
            sentry_sdk.start_transaction(transaction)
            transaction.set_data("messaging.system", batch.messaging_system)
            transaction.set_data("messaging.destination.name", destination)
            transaction.set_data("messaging.message.id", message.message_id)
            transaction.set_data("messaging.message.retry.count", message.attempts)
            transaction.set_tag("outbox.publisher", batch.publisher_alias)
            transaction.set_tag("outbox.outcome", verdict.value)
            transaction.set_status("ok" if verdict is Verdict.ACCEPTED else "internal_error")
            transaction.finish(end_timestamp=_time(batch.ended_at))


def _send_failure(using: str, publisher: str, failure: Failure, count: int) -> None:
    message = failure.message
    with sentry_sdk.isolation_scope() as scope:
        if headers := trace_headers(message, TRACE_HEADER, BAGGAGE_HEADER):
            scope.generate_propagation_context(headers)
        scope.set_tag("outbox.publisher", publisher)
        scope.set_tag("outbox.database", using)
        scope.set_tag("outbox.type", message.type)
        scope.set_tag("outbox.message_id", message.message_id)
        scope.set_tag("outbox.error_class", failure.error_class)
        scope.set_context(
            "outbox",
            {
                "row": message.id,
                "attempts": message.attempts + 1,
                "blocks its key": failure.blocks_key,
                "dead-lettered": failure.dead_lettered,
                "failed messages": count,
            },
        )
        sentry_sdk.capture_event(
            {
                "level": "error",
                "logger": "django_outbox",
                "transaction": f"publish {message.destination}",
                "fingerprint": ["django_outbox", message.type, failure.error_class],
                "exception": {
                    "values": [
                        {
                            "type": failure.error_class,
                            "value": failure.error,
                            "mechanism": {"type": "django_outbox", "handled": True},
                        }
                    ]
                },
            }
        )


def _find_integration() -> OutboxIntegration | None:
    integration: OutboxIntegration | None = sentry_sdk.get_client().get_integration(OutboxIntegration)
    return integration


def _sends_transactions(options: Mapping[str, Any]) -> bool:
    streams = "stream" in (options.get("trace_lifecycle"), (options.get("_experiments") or {}).get("trace_lifecycle"))
    return has_tracing_enabled(dict(options)) and not streams


def _time(nanoseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(nanoseconds / 1e9, datetime.timezone.utc)
