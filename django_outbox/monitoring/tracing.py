"""OpenTelemetry: messages carry the trace in which they were enqueued, and publishing them is a span in it.

Names and attributes follow the semantic conventions for messaging. No span holds a payload, a key or an error's text.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_outbox.messages import ACCEPTED, Message, Outcome, OutcomeKind, class_path
from django_outbox.models import OutboxMessage
from django_outbox.tracing import PublishedBatch, Tracer
from django_outbox.utils.rates import Allowance

SPANS_PER_SECOND = 200
"""Maximum number of publish spans of a process in a second, and of process spans. A span takes about 0.1 ms, several
times as much as the delivery of a message, so this is about 2% of one CPU; 2,000 spans for each batch of a backlog
would halve the rate."""

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

TRACEPARENT_LENGTH = 55
"""Characters of a `traceparent` of version 00; later versions may be longer, but begin alike."""

MAX_TRACESTATE_LENGTH = 8 * 1024
"""Characters above which a `tracestate`, which comes from the caller's request, is left out of a message."""

_NO_HEADERS: Mapping[str, str] = {}


class OpenTelemetryTracer(Tracer):
    """Creates spans with the globally configured tracer provider."""

    def __init__(self) -> None:
        # It uses the provider that is configured when a span begins, also one that is configured later.
        self._tracer = trace.get_tracer("django_outbox")
        self._propagator = TraceContextTextMapPropagator()
        self._spans = Allowance(SPANS_PER_SECOND, 1.0)
        self._handled = Allowance(SPANS_PER_SECOND, 1.0)

    def enqueueing(self, messages: Sequence[OutboxMessage], *, many: bool) -> AbstractContextManager[Mapping[str, str]]:
        """Yield `traceparent` and `tracestate` if there is a current span, for messages without them.

        A sampled trace gets one span, and the messages get its context. Without a current span, no trace begins.
        """
        span = trace.get_current_span()
        if not span.get_span_context().is_valid:
            return nullcontext(_NO_HEADERS)
        new = [message for message in messages if TRACEPARENT not in message.headers]
        if not new:
            return nullcontext(_NO_HEADERS)
        if not span.is_recording():
            return nullcontext(self._current_headers())
        return self._creating(new, many)

    @contextmanager
    def handling(self, message: Message) -> Iterator[None]:
        """Continue the message's trace, with a span while the allowance lasts.

        Unlike the relay's own work, what the handler does is recorded by OpenTelemetry's instrumentations.
        """
        own = context.Context()
        span = None
        if TRACEPARENT in message.headers:
            own = self._extract(message)
            if _is_sampled(message.headers) and self._handled.take():
                span = self._start_handling(message, own)
                own = trace.set_span_in_context(span, own)
        token = context.attach(own)
        try:
            yield
        except BaseException as error:
            if span is not None:
                _fail(span, class_path(error))
            raise
        finally:
            context.detach(token)
            if span is not None:
                span.end()

    def published(self, batch: PublishedBatch) -> None:
        """Record a span for each message with a sampled trace, failures first, while the allowance lasts."""
        sampled = [
            (message, outcome)
            for message, outcome in zip(batch.messages, batch.outcomes, strict=True)
            if message.headers and outcome.kind is not OutcomeKind.BLOCKED and _is_sampled(message.headers)
        ]
        for message, outcome in sorted(sampled, key=lambda each: each[1] is ACCEPTED):
            if not self._spans.take():
                return
            self._record(message, outcome, batch)

    @contextmanager
    def _creating(self, messages: Sequence[OutboxMessage], many: bool) -> Iterator[Mapping[str, str]]:
        operation = "send" if many else "create"
        attributes: dict[str, Any] = {
            "messaging.system": "django_outbox",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
        }
        destinations = {message.topic or message.type for message in messages}
        name = operation
        if len(destinations) == 1:
            (attributes["messaging.destination.name"],) = destinations
            name = f"{operation} {attributes['messaging.destination.name']}"
        if many:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes["messaging.message.id"] = str(messages[0].message_id)
        with self._tracer.start_as_current_span(
            name,
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            # The text of a database's error may quote the row.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield self._current_headers()
            except BaseException as error:
                _fail(span, class_path(error))
                raise

    def _current_headers(self) -> dict[str, str]:
        # Only the trace's identity: baggage may hold personal data, and messages are stored and leave the company.
        headers: dict[str, str] = {}
        self._propagator.inject(headers)
        if len(headers.get(TRACESTATE, "")) > MAX_TRACESTATE_LENGTH:
            del headers[TRACESTATE]
        return headers

    def _extract(self, message: Message) -> context.Context:
        # Another program may have written anything.
        headers = {name: value for name, value in message.headers.items() if isinstance(value, str)}
        return self._propagator.extract(headers, context.Context())

    def _start_handling(self, message: Message, parent: context.Context) -> Span:
        return self._tracer.start_span(
            f"process {message.type}",
            parent,
            kind=SpanKind.CONSUMER,
            links=[Link(trace.get_current_span(parent).get_span_context())],
            attributes={
                "messaging.system": "django_outbox",
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": message.topic or message.type,
                "messaging.message.id": message.message_id,
            },
        )

    def _record(self, message: Message, outcome: Outcome, batch: PublishedBatch) -> None:
        parent = self._extract(message)
        creation = trace.get_current_span(parent).get_span_context()
        if not creation.is_valid:
            return
        destination = batch.name_destination(message)
        span = self._tracer.start_span(
            f"publish {destination}",
            parent,
            # The message keeps the context of its creation: a consumer's span is no child of this one.
            kind=SpanKind.CLIENT,
            links=[Link(creation)],
            start_time=batch.began_at,
            attributes={
                "messaging.system": batch.messaging_system,
                "messaging.operation.name": "publish",
                "messaging.operation.type": "send",
                "messaging.destination.name": destination,
                "messaging.message.id": message.message_id,
                "django_outbox.publisher": batch.publisher_alias,
                "django_outbox.outcome": outcome.kind.value,
                "django_outbox.attempt": message.attempts + 1,
            },
        )
        if outcome is not ACCEPTED:
            _fail(span, outcome.error_kind)
            span.set_attribute("django_outbox.failed", message.id in batch.failed)
        span.end(batch.ended_at)


def _fail(span: Span, error_type: str) -> None:
    span.set_status(Status(StatusCode.ERROR))
    span.set_attribute("error.type", error_type)


def _is_sampled(headers: Mapping[str, Any]) -> bool:
    """Return whether a message's trace is sampled: whether the last hexadecimal digit of the flags is odd."""
    value = headers.get(TRACEPARENT)
    return isinstance(value, str) and len(value) >= TRACEPARENT_LENGTH and value[TRACEPARENT_LENGTH - 1] in "13579bdf"
