"""The integration of Sentry, with the real SDK and a transport that keeps what would be sent."""

import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sentry_sdk
from django.db import transaction
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.contrib.sentry import OutboxIntegration
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later
from django_outbox.rates import Allowance
from django_outbox.relay import Relay
from tests.support.messages import Clock, put
from tests.support.publishers import SCRIPTED, Script

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("scripted")]

OUTBOX = {"PUBLISHERS": {"default": SCRIPTED}}
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"

Start = Callable[..., list[dict[str, Any]]]


class Memory(Transport):
    """Keeps the events instead of sending them."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        super().__init__()
        self._events = events

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            event = item.get_event() or item.get_transaction_event()
            if event is not None:
                self._events.append({**event})


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the SDK with options of the integration, and return the list of its events."""

    def start(*, rate: float | None = 1.0, integration: OutboxIntegration | None = None, **options: Any) -> Any:
        events: list[dict[str, Any]] = []
        sentry_sdk.init(
            dsn="http://key@127.0.0.1:9/1",
            transport=Memory(events),
            default_integrations=False,
            integrations=[LoggingIntegration(), integration or OutboxIntegration(**options)],
            traces_sample_rate=rate,
        )
        return events

    yield start
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


def write(**fields: Any) -> OutboxMessage:
    with transaction.atomic():
        return enqueue("order.created", {"id": 7}, **fields)


def deliver(scripted: Script, answer: Callable[[Message], Outcome] = lambda message: ACCEPTED) -> None:
    scripted.answer = answer
    with Relay() as relay:
        relay.deliver_once()


def refuse(message: Message) -> Outcome:
    return rejected("no such queue", error_class="shop.Unroutable")


def traced() -> dict[str, str]:
    return {"sentry-trace": f"{TRACE_ID}-{'b' * 16}-1", "baggage": f"sentry-trace_id={TRACE_ID}"}


# Failed messages


def test_a_failed_message_is_an_issue_of_its_type_and_error_class(start: Start, scripted: Script):
    events = start()
    message = write(key="secret-key", headers={"customer": "secret-header", **traced()})
    deliver(scripted, refuse)
    (event,) = [event for event in events if event.get("type") != "transaction"]
    assert event["fingerprint"] == ["django_outbox", "order.created", "shop.Unroutable"]
    assert event["level"] == "error"
    (exception,) = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("shop.Unroutable", "no such queue")
    assert event["tags"] == {
        "outbox.publisher": "default",
        "outbox.database": "default",
        "outbox.type": "order.created",
        "outbox.message_id": str(message.message_id),
        "outbox.error_class": "shop.Unroutable",
    }
    assert event["contexts"]["outbox"] == {
        "row": message.pk,
        "attempts": 1,
        "blocks its key": False,
        "dead-lettered": False,
        "failed messages": 1,
    }
    assert event["contexts"]["trace"]["trace_id"] == TRACE_ID
    assert "secret" not in repr(event)


def test_the_failures_of_one_kind_in_a_batch_are_one_event_with_their_number(start: Start, scripted: Script):
    events = start()
    put(1000)
    deliver(scripted, refuse)
    (event,) = events
    assert event["contexts"]["outbox"]["failed messages"] == 1000


def test_failures_of_different_classes_are_different_issues(start: Start, scripted: Script):
    events = start()
    put(6)
    deliver(scripted, lambda message: rejected("never", error_class=f"shop.Error{int(message.payload) % 2}"))
    assert sorted(event["fingerprint"][-1] for event in events) == ["shop.Error0", "shop.Error1"]
    assert [event["contexts"]["outbox"]["failed messages"] for event in events] == [3, 3]


def test_the_number_of_events_in_a_minute_is_limited(start: Start, scripted: Script):
    events = start(events_per_minute=5)
    put(50)
    deliver(scripted, lambda message: rejected("never", error_class=f"shop.Error{int(message.payload)}"))
    assert len(events) == 5


def test_a_message_that_is_retried_is_no_issue(start: Start, scripted: Script):
    events = start()
    write()
    deliver(scripted, lambda message: retry_later("busy"))
    assert events == []


def test_the_logs_line_about_failed_messages_is_no_second_issue(start: Start, scripted: Script):
    events = start()
    write()
    deliver(scripted, refuse)
    logging.getLogger("django_outbox").error("Something else")
    assert [event.get("logentry", {}).get("message") for event in events] == [None, "Something else"]


def test_without_the_integrations_issues_the_log_line_is_one(start: Start, scripted: Script):
    events = start(failures=False)
    write()
    deliver(scripted, refuse)
    (event,) = events
    assert event["logentry"]["message"].startswith("Publisher %r: %s failed (")


# Traces


def test_a_message_enqueued_in_a_transaction_carries_its_trace(start: Start):
    events = start()
    with sentry_sdk.start_transaction(name="checkout") as request:
        message = write(headers={"source": "web"})
    (checkout,) = events
    (span,) = [span for span in checkout["spans"] if span["op"] == "queue.publish"]
    assert span["description"] == "order.created"
    assert span["data"]["messaging.message.id"] == str(message.message_id)
    assert message.headers["source"] == "web"
    assert message.headers["sentry-trace"] == f"{request.trace_id}-{span['span_id']}-1"
    assert f"sentry-trace_id={request.trace_id}" in message.headers["baggage"]


def test_enqueue_many_is_one_span(start: Start):
    events = start()
    with sentry_sdk.start_transaction(name="checkout"), transaction.atomic():
        messages = enqueue_many([OutboxMessage(type="order.created", payload=n) for n in range(5)])
    (span,) = [span for span in events[0]["spans"] if span["op"] == "queue.publish"]
    assert span["data"]["messaging.batch.message_count"] == 5
    assert {message.headers["sentry-trace"].split("-")[1] for message in messages} == {span["span_id"]}


def test_without_performance_tracing_errors_still_share_a_trace(start: Start):
    start(rate=None)
    message = write()
    trace_id = sentry_sdk.get_current_scope().get_active_propagation_context().trace_id
    assert message.headers["sentry-trace"].startswith(trace_id)


def test_a_trace_that_the_caller_chose_is_kept(start: Start):
    start()
    with sentry_sdk.start_transaction(name="checkout"):
        assert write(headers=traced()).headers == traced()
        assert write(headers={"baggage": "mine=1"}).headers["baggage"] == "mine=1"


def test_passing_traces_on_can_be_switched_off(start: Start):
    start(propagate_traces=False)
    with sentry_sdk.start_transaction(name="checkout"):
        assert write().headers == {}


@pytest.mark.parametrize(
    ("answer", "status", "outcome"),
    [(lambda message: ACCEPTED, "ok", "accepted"), (refuse, "internal_error", "rejected")],
    ids=["accepted", "rejected"],
)
def test_publishing_a_message_of_a_sampled_trace_is_a_transaction(
    start: Start, answer: Callable[[Message], Outcome], status: str, outcome: str, scripted: Script
):
    events = start()
    message = write(headers=traced())
    deliver(scripted, answer)
    (published,) = [event for event in events if event.get("type") == "transaction"]
    trace = published["contexts"]["trace"]
    assert published["transaction"] == "publish order.created"
    assert (trace["trace_id"], trace["parent_span_id"]) == (TRACE_ID, "b" * 16)
    assert (trace["op"], trace["status"]) == ("queue.publish", status)
    assert trace["data"]["messaging.message.id"] == str(message.message_id)
    assert published["tags"]["outbox.outcome"] == outcome
    assert published["start_timestamp"] <= published["timestamp"]


@pytest.mark.parametrize(
    "header",
    [f"{TRACE_ID}-{'b' * 16}-0", f"{TRACE_ID}-{'b' * 16}", "nonsense", 7, None],
    ids=["not sampled", "undecided", "nonsense", "number", "null"],
)
def test_publishing_other_messages_is_no_transaction(start: Start, header: Any, scripted: Script):
    events = start()
    write(headers={"sentry-trace": header})
    deliver(scripted)
    assert events == []


def test_the_number_of_transactions_in_a_second_is_limited(start: Start, scripted: Script):
    class Stopped(OutboxIntegration):
        """Its second never ends."""

        def __init__(self) -> None:
            super().__init__()
            self.transactions = Allowance(10, 1.0, Clock())

    events = start(integration=Stopped())
    put(30, headers=traced())
    deliver(scripted)
    assert len(events) == 10


# When the SDK is not there, or fails


def test_without_a_client_nothing_is_added(scripted: Script):
    assert sentry_sdk.get_client().is_active() is False
    assert write().headers == {}
    deliver(scripted, refuse)


def test_an_sdk_that_raises_affects_neither_callers_nor_deliveries(
    start: Start, monkeypatch: pytest.MonkeyPatch, scripted: Script
):
    start()

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug in the SDK")

    monkeypatch.setattr(sentry_sdk, "start_span", fail)
    monkeypatch.setattr(sentry_sdk, "continue_trace", fail)
    monkeypatch.setattr(sentry_sdk, "capture_event", fail)
    with sentry_sdk.start_transaction(name="checkout"):
        write(message_id=uuid.uuid4())
    write(headers=traced())
    deliver(scripted, refuse)
    assert OutboxMessage.objects.failed().count() == 2
