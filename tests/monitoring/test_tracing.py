"""OpenTelemetry: enqueueing and publishing are spans of the caller's trace."""

import time
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import DatabaseError, transaction
from django.test import modify_settings, override_settings
from opentelemetry import baggage, context, trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_outbox import OutboxMessage, enqueue, enqueue_many, tracing
from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from django_outbox.enqueueing import enqueue as enqueue_module
from django_outbox.enqueueing.validation import MAX_HEADERS_BYTES
from django_outbox.handlers import handler
from django_outbox.handlers.registry import HandlerRegistry
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later, unanswered
from django_outbox.monitoring.tracing import OpenTelemetryTracer
from django_outbox.relay import Relay
from django_outbox.utils.rates import Allowance
from django_outbox.utils.threads import Threads
from tests.conftest import ALIASES
from tests.support.claimed import make_message
from tests.support.effects import HANDLERS
from tests.support.messages import Clock, put
from tests.support.publishers import SCRIPTED, Script
from tests.support.tracing import SPAN_ID, TRACE_ID, Switchable, traceparent, within_trace

pytest_plugins = [
    "tests.support.handlers_fixtures",
    "tests.support.tracing_fixtures",
]
pytestmark = [pytest.mark.django_db(databases=ALIASES), pytest.mark.usefixtures("scripted", "spans")]

OUTBOX = {"PUBLISHERS": {"default": SCRIPTED}}

tracer = trace.get_tracer("tests")


def write(using: str = "default", **fields: Any) -> OutboxMessage:
    with transaction.atomic(using=using):
        return enqueue("order.created", {"id": 7}, using=using, **fields)


def deliver(scripted: Script, using: str = "default") -> list[Message]:
    with Relay(using=using) as relay:
        relay.deliver_once()
    return scripted.batches[-1]


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def context_of(headers: Any) -> trace.SpanContext:
    """Read headers as a consumer does."""
    return trace.get_current_span(TraceContextTextMapPropagator().extract(headers)).get_span_context()


# Enqueueing


def test_an_app_that_is_started_again_traces_once(spans: InMemorySpanExporter):
    with tracer.start_as_current_span("request"):
        write()
        with modify_settings(INSTALLED_APPS={"append": "django.contrib.humanize"}):
            write()
    assert len(named(spans, "create order.created")) == 2


def test_enqueue_is_a_span_whose_context_is_in_the_headers(using: str, spans: InMemorySpanExporter):
    with tracer.start_as_current_span("request") as request:
        message = write(using, topic="shop.orders", headers={"source": "web"})
    (created,) = named(spans, "create shop.orders")
    assert created.kind is SpanKind.PRODUCER
    assert created.parent is not None
    assert created.parent.span_id == request.get_span_context().span_id
    assert created.status.status_code is StatusCode.UNSET
    assert dict(created.attributes or {}) == {
        "messaging.system": "django_outbox",
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        "messaging.destination.name": "shop.orders",
        "messaging.message.id": str(message.message_id),
    }
    stored = OutboxMessage.objects.using(using).get().headers
    assert stored.keys() == {"source", "traceparent"}
    assert context_of(stored).span_id == created.context.span_id
    assert context_of(stored).trace_id == request.get_span_context().trace_id


def test_without_a_current_span_a_message_has_no_trace(spans: InMemorySpanExporter, scripted: Script):
    assert write(headers={"source": "web"}).headers == {"source": "web"}
    deliver(scripted)
    assert spans.get_finished_spans() == ()


def test_a_trace_that_the_caller_chose_is_kept(spans: InMemorySpanExporter):
    with tracer.start_as_current_span("request"):
        message = write(headers={"traceparent": traceparent()})
    assert message.headers == {"traceparent": traceparent()}
    assert [span.name for span in spans.get_finished_spans()] == ["request"]


def test_a_trace_that_is_not_sampled_is_passed_on_without_a_span(spans: InMemorySpanExporter, scripted: Script):
    with within_trace(sampled=False):
        message = write()
    assert message.headers == {"traceparent": traceparent(sampled=False)}
    deliver(scripted)
    assert spans.get_finished_spans() == ()


def test_the_state_of_a_trace_is_passed_on_and_baggage_is_not():
    with within_trace(sampled=True, state={"vendor": "a1"}):
        token = context.attach(baggage.set_baggage("customer", "17"))
        try:
            message = write()
        finally:
            context.detach(token)
    assert message.headers.keys() == {"traceparent", "tracestate"}
    assert message.headers["tracestate"] == "vendor=a1"


def test_a_state_of_a_trace_that_is_too_long_is_left_out():
    with within_trace(sampled=True, state={f"vendor{number}": "x" * 256 for number in range(32)}):
        assert write().headers.keys() == {"traceparent"}


def test_headers_of_the_maximum_size_still_get_the_trace():
    with tracer.start_as_current_span("request"):
        message = write(headers={"text": "x" * (MAX_HEADERS_BYTES - len('{"text": ""}'))})
    assert "traceparent" in message.headers


def test_enqueue_many_is_one_span_for_all_messages_without_a_trace(using: str, spans: InMemorySpanExporter):
    messages = [OutboxMessage(type="order.created", payload=n) for n in range(3)]
    messages.append(OutboxMessage(type="order.created", payload=3, headers={"traceparent": traceparent()}))
    with tracer.start_as_current_span("request"), transaction.atomic(using=using):
        enqueue_many(messages, using=using)
    (sent,) = named(spans, "send order.created")
    assert sent.kind is SpanKind.PRODUCER
    assert dict(sent.attributes or {}) == {
        "messaging.system": "django_outbox",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "order.created",
        "messaging.batch.message_count": 3,
    }
    stored = list(OutboxMessage.objects.using(using).order_by("payload").values_list("headers", flat=True))
    assert [context_of(headers).span_id for headers in stored] == [sent.context.span_id] * 3 + [SPAN_ID]


def test_a_row_that_cannot_be_written_is_an_error_without_its_text(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any, **__: Any) -> Any:
        raise DatabaseError("Failing row contains (secret)")

    monkeypatch.setattr(enqueue_module, "write", fail)
    with tracer.start_as_current_span("request"), pytest.raises(DatabaseError, match="secret"):
        write()
    (created,) = named(spans, "create order.created")
    assert created.status.status_code is StatusCode.ERROR
    assert (created.attributes or {})["error.type"] == "django.db.utils.DatabaseError"
    assert "secret" not in created.to_json()


def test_a_message_to_several_publishers_is_one_span(using: str, spans: InMemorySpanExporter):
    outbox = {"PUBLISHERS": {"default": SCRIPTED, "audit": SCRIPTED}, "ROUTES": {"*": ["audit", "default"]}}
    with override_settings(OUTBOX=outbox), tracer.start_as_current_span("request"):
        message = write(using)
    (created,) = named(spans, "create order.created")
    assert (created.attributes or {})["messaging.message.id"] == str(message.message_id)
    rows = OutboxMessage.objects.using(using).values_list("headers", flat=True)
    assert len(rows) == 2
    context = created.get_span_context()
    assert context is not None
    assert {context_of(headers).span_id for headers in rows} == {context.span_id}


# Publishing


def test_publishing_is_a_span_of_the_messages_trace_with_a_link(
    using: str, spans: InMemorySpanExporter, scripted: Script
):
    message = write(using, key="order-7", topic="shop.orders", headers={"traceparent": traceparent()})
    before = time.time_ns()
    (published,) = deliver(scripted, using)
    (span,) = named(spans, "publish shop.orders")
    assert published.headers == {"traceparent": traceparent()}
    assert span.kind is SpanKind.CLIENT
    assert span.parent is not None
    assert (span.context.trace_id, span.parent.span_id) == (TRACE_ID, SPAN_ID)
    assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [(TRACE_ID, SPAN_ID)]
    assert span.status.status_code is StatusCode.UNSET
    assert before <= (span.start_time or 0) <= (span.end_time or 0) <= time.time_ns()
    assert dict(span.attributes or {}) == {
        "messaging.system": "django_outbox",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "shop.orders",
        "messaging.message.id": str(message.message_id),
        "django_outbox.publisher": "default",
        "django_outbox.outcome": "accepted",
        "django_outbox.attempt": 1,
    }


@pytest.mark.parametrize(
    ("outcome", "error_type", "failed"),
    [
        (rejected("secret", error_class="shop.Unroutable"), "shop.Unroutable", True),
        (rejected("secret"), "rejected", True),
        (retry_later("secret", cause=KeyError("secret")), "KeyError", False),
        (unanswered("secret"), "unanswered", False),
    ],
    ids=["rejected with a class", "rejected", "deferred", "unanswered"],
)
def test_a_message_that_was_not_accepted_is_an_error_without_its_text(
    spans: InMemorySpanExporter, outcome: Outcome, error_type: str, failed: bool, scripted: Script
):
    write(key="secret", headers={"traceparent": traceparent()})
    scripted.answer = lambda message: outcome
    with Relay() as relay:
        if error_type == "unanswered":
            with pytest.raises(Exception, match="secret"):
                relay.deliver_once()
        else:
            relay.deliver_once()
    (span,) = named(spans, "publish order.created")
    assert span.status.status_code is StatusCode.ERROR
    attributes = span.attributes or {}
    assert attributes["django_outbox.outcome"] == outcome.kind.value
    assert (attributes["error.type"], attributes["django_outbox.failed"]) == (error_type, failed)
    assert "secret" not in span.to_json()


@pytest.mark.parametrize(
    "header",
    [
        traceparent(sampled=False),
        "",
        "x" * 54 + "1",
        7,
        None,
        ["00"],
        {"a": 1},
        traceparent(trace_id=0),
        "ff" + traceparent()[2:],
    ],
    ids=["not sampled", "blank", "nonsense", "number", "null", "list", "dict", "no trace", "unknown version"],
)
def test_a_header_without_a_sampled_trace_has_no_span(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, header: Any, scripted: Script
):
    write(headers={"traceparent": header, "tracestate": header})
    (published,) = deliver(scripted)
    assert published.headers["traceparent"] == header
    assert spans.get_finished_spans() == ()
    assert [record for record in caplog.records if "Tracing failed" in record.getMessage()] == []


def test_the_number_of_spans_in_a_second_is_limited_and_failures_come_first(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, scripted: Script
):
    (registered,) = [each for each in tracing.tracers if isinstance(each, OpenTelemetryTracer)]
    monkeypatch.setattr(registered, "_spans", Allowance(10, 1.0, Clock()))
    put(30, headers={"traceparent": traceparent()})
    scripted.answer = lambda message: rejected("never") if message.payload == b"29" else ACCEPTED
    assert len(deliver(scripted)) == 30
    outcomes = [(span.attributes or {})["django_outbox.outcome"] for span in named(spans, "publish t")]
    assert outcomes == ["rejected"] + ["accepted"] * 9


# Handlers


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("in_transaction", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_a_handler_continues_the_trace_of_its_message(
    spans: InMemorySpanExporter, handlers: HandlerRegistry, in_transaction: bool, fails: bool
):
    @handler("order.created")
    async def note(payload: Any, message: Message) -> None:
        await sync_to_async(enqueue)("order.noted", {}, require_transaction=False)
        if fails:
            raise KeyError("secret")

    outbox = {"PUBLISHERS": {"default": {**HANDLERS, "OPTIONS": {"transaction": in_transaction}}}}
    write(headers={"traceparent": traceparent()})
    with override_settings(OUTBOX=outbox), Relay() as relay:
        relay.deliver_once()
    (process,), (created,) = named(spans, "process order.created"), named(spans, "create order.noted")
    assert process.kind is SpanKind.CONSUMER
    assert process.parent is not None
    assert (process.context.trace_id, process.parent.span_id) == (TRACE_ID, SPAN_ID)
    assert created.parent is not None
    assert created.parent.span_id == process.context.span_id
    assert (process.attributes or {}).get("error.type") == ("KeyError" if fails else None)
    assert "secret" not in process.to_json()


@pytest.mark.django_db(databases=ALIASES, transaction=True)
def test_a_function_that_a_handler_gives_to_on_commit_continues_the_trace(using: str, handlers: HandlerRegistry):
    found: list[tuple[str, bool]] = []

    @handler("order.created")
    def note(payload: Any, message: Message) -> None:
        transaction.on_commit(look, using=using)

    def look() -> None:
        found.append((f"{trace.get_current_span().get_span_context().trace_id:x}", is_instrumentation_enabled()))

    for headers in ({"traceparent": traceparent()}, {"traceparent": traceparent(sampled=False)}, {}):
        write(using, headers=headers)
    with override_settings(OUTBOX={"PUBLISHERS": {"default": HANDLERS}}), Relay(using=using) as relay:
        relay.drain()
    assert sorted(found) == sorted([(f"{TRACE_ID:x}", True)] * 2 + [("0", True)])


def test_the_work_of_the_outboxs_own_threads_is_not_recorded():
    found: list[bool] = []
    threads = Threads()
    threads.start(lambda: found.append(is_instrumentation_enabled()), name="test")
    threads.wait()
    assert found == [False]
    assert is_instrumentation_enabled()


# Failures of the SDK


@pytest.mark.parametrize("at", ["start", "end"])
@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_enqueue_survives_a_span_processor_that_raises(
    processor: Switchable, caplog: pytest.LogCaptureFixture, at: str, many: bool
):
    with tracer.start_as_current_span("request"):
        processor.error, processor.fails_at = RuntimeError("the collector is away"), at
        if many:
            with transaction.atomic():
                enqueue_many([OutboxMessage(type="order.created", payload=1)])
        else:
            write()
        processor.error = None
    assert OutboxMessage.objects.count() == 1
    assert "Tracing failed; messages are delivered without it: RuntimeError: the collector is away" in caplog.text


@pytest.mark.parametrize(
    "error", [RuntimeError("away"), SystemExit(1), KeyboardInterrupt()], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("at", ["start", "end"])
def test_a_relay_survives_a_span_processor_that_raises(
    transactional_db: None,
    processor: Switchable,
    caplog: pytest.LogCaptureFixture,
    at: str,
    error: BaseException,
):
    put(3, headers={"traceparent": traceparent()})
    processor.error, processor.fails_at = error, at
    with Relay() as relay:
        assert relay.drain().processed == 3
    assert OutboxMessage.objects.processed().count() == 3
    assert caplog.text.count("Tracing failed") == 1


def test_rabbitmq_names_the_exchange_and_the_routing_key():
    message = make_message("shop.orders", type="order.created")
    for exchange, name in {"shop": "shop:shop.orders", "": "shop.orders"}.items():
        publisher = RabbitMQPublisher("default", url=settings.AMQP_URL, exchange=exchange)
        assert publisher.name_destination(message) == name
