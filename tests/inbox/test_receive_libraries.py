"""The examples of the guide about `receive`: with FastStream and kombu themselves, and with messages of SQS."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import OperationalError, connections
from django.test import override_settings
from kombu import Connection

from django_outbox.brokers import Incoming
from django_outbox.brokers.aws import SQSPublisher
from django_outbox.inbox import Received
from django_outbox.inbox.storing import InboxWriter
from django_outbox.models import OutboxMessage
from django_outbox.utils.threads import Threads, own_connection
from tests.conftest import ALIASES
from tests.docs.blocks import example, find
from tests.inbox.conftest import MEMORY, payloads, stored
from tests.inbox.sources.rabbitmq import RabbitMQSource
from tests.publishers.subjects.base import unique_name
from tests.support.aws.server import CREDENTIALS, REGION, client, endpoint_url
from tests.support.claimed import make_message
from tests.support.effects import HANDLERS
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.script_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)

BROKER, QUEUE = "amqp://guest:guest@localhost:5672/%2F", '"billing"'


@pytest.fixture(autouse=True)
def outbox() -> Iterator[None]:
    with override_settings(OUTBOX={"PUBLISHERS": {"default": MEMORY, "handlers": HANDLERS}}):
        yield


def run_example(file: str, source: RabbitMQSource) -> dict[str, Any]:
    """Run the file of the guide, with the test's broker and queue, and return its names."""
    names: dict[str, Any] = {"__name__": "example"}
    (code,) = find("receive", caption=file)
    # The name of the consumer remains.
    for name in (f"Queue({QUEUE}", BROKER):
        assert name in code
    code = code.replace(f"Queue({QUEUE}", f"Queue({source.name!r}").replace(BROKER, settings.AMQP_URL)
    exec(compile(code, file, "exec"), names)
    return names


def send_to(source: RabbitMQSource) -> list[str]:
    """Send two orders, one of them twice, and a message that is not JSON; return the IDs of the orders."""
    properties = {"content_encoding": "utf-8"}
    ids = source.send({"id": 7}, key="order-7", headers={"tenant": "acme"}, properties=properties)
    source.send({"id": 7}, message_id=ids[0])
    source.send(raw=b"{", properties={"content_type": "application/json"})
    return ids + source.send({"id": 8}, properties={"type": "", "correlation_id": "request-3"})


@pytest.fixture
def limited(source: RabbitMQSource) -> RabbitMQSource:
    """A quorum queue that drops a message that was returned 3 times."""
    source.name = source.broker.queue("quorum", delivery_limit=3)
    return source


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage of the database, from the first message on."""
    store, ends = InboxWriter.store, []

    def fail(self: InboxWriter, batch: Sequence[Incoming]) -> Received:
        ends.append(time.monotonic() + 2.5)
        if time.monotonic() < ends[0]:
            raise OperationalError("connection refused")
        return store(self, batch)

    monkeypatch.setattr(InboxWriter, "store", fail)


def check_stored(source: RabbitMQSource, ids: list[str]) -> None:
    first, last = OutboxMessage.objects.pending().order_by("id")
    assert [str(first.message_id), str(last.message_id)] == ids
    assert (first.type, first.topic, first.key, first.payload) == ("order.created", source.name, "order-7", {"id": 7})
    assert first.headers == {"tenant": "acme"}
    assert (last.type, last.headers) == (source.name, {"correlation_id": "request-3"})
    (failed,) = OutboxMessage.objects.failed()
    assert failed.payload["body"] == "{"
    assert source.unsettled() == 0


def run_faststream(source: RabbitMQSource, count: int) -> None:
    """Run the example until that many messages are stored."""
    pytest.importorskip("faststream.rabbit", reason="faststream[rabbit] is not installed")
    broker = run_example("shop/broker.py", source)["broker"]

    async def read() -> None:
        async with broker:
            await broker.start()
            for _ in range(600):
                if len(await sync_to_async(stored)("default")) == count and source.unsettled() == 0:
                    break
                await asyncio.sleep(0.05)
        await sync_to_async(connections.close_all)()

    asyncio.run(read())


def run_kombu(source: RabbitMQSource, count: int) -> None:
    """Run the example until that many messages are stored."""
    example = run_example("shop/management/commands/read_billing.py", source)
    threads = Threads()
    with Connection(settings.AMQP_URL) as connection:
        billing = example["Billing"](connection)

        def run() -> None:
            with own_connection("default"):
                billing.run()

        threads.start(run, name="kombu")
        try:
            eventually(lambda: len(stored("default")) == count, "the messages are stored")
            eventually(lambda: source.unsettled() == 0, "they are acknowledged")
        finally:
            billing.should_stop = True
            assert threads.wait(30), "kombu did not stop"
    assert not threads.errors


LIBRARIES = pytest.mark.parametrize("run", [run_faststream, run_kombu], ids=["faststream", "kombu"])


@LIBRARIES
def test_a_library_stores_what_it_reads(source, run):
    ids = send_to(source)
    run(source, 3)
    check_stored(source, ids)


@LIBRARIES
@pytest.mark.usefixtures("outage")
def test_a_library_loses_no_message_in_an_outage(limited, run):
    limited.send(*range(5))
    run(limited, 5)
    assert payloads("default") == [*range(5)]


@LIBRARIES
def test_a_library_moves_rejected_messages_to_the_dead_letters(source, run):
    too_large = json.dumps("1" * 2 * 1024 * 1024).encode()
    source.send(raw=too_large)
    source.send({"id": 8})
    run(source, 1)
    (dead,) = eventually(source.take_dead, "the message is a dead letter")
    assert len(dead.body) == len(too_large)


def as_record(received: dict[str, Any]) -> dict[str, Any]:
    """Return a message of SQS as Lambda passes it: https://docs.aws.amazon.com/lambda/latest/dg/with-sqs.html."""
    attributes = received.get("MessageAttributes", {})
    return {
        "messageId": received["MessageId"],
        "receiptHandle": received["ReceiptHandle"],
        "body": received["Body"],
        "attributes": {"ApproximateReceiveCount": "1"},
        "messageAttributes": {
            name: {"stringValue": each["StringValue"], "dataType": each["DataType"]}
            for name, each in attributes.items()
        },
        "eventSource": "aws:sqs",
        "awsRegion": REGION,
    }


def test_a_lambda_function_stores_a_batch_and_returns_the_rejected_messages(monkeypatch: pytest.MonkeyPatch):
    sqs = client("sqs")
    url = str(sqs.create_queue(QueueName=unique_name())["QueueUrl"])
    order = make_message("", b'{"id": 7}', key="order-7")
    with closing(
        SQSPublisher("default", queue_url=url, region=REGION, endpoint_url=endpoint_url(), session=CREDENTIALS)
    ) as publisher:
        publisher.publish([order, order])
    sqs.send_message(QueueUrl=url, MessageBody="{")
    large = sqs.send_message(QueueUrl=url, MessageBody=str([1] * 2000))["MessageId"]
    records: list[dict[str, Any]] = []

    def receive_all() -> bool:
        found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
        records.extend(map(as_record, found.get("Messages", [])))
        return len(records) == 4

    eventually(receive_all, "the messages are received")
    monkeypatch.setattr("django.setup", lambda: None)
    handle = example("receive", "handler")
    with override_settings(OUTBOX={**settings.OUTBOX, "MAX_PAYLOAD_BYTES": 1000}):
        assert handle({"Records": records}, None) == {"batchItemFailures": [{"itemIdentifier": large}]}
    (message,) = OutboxMessage.objects.pending()
    assert (str(message.message_id), message.type, message.key) == (order.message_id, "order.created", "order-7")
    assert message.payload == {"id": 7}
    assert OutboxMessage.objects.failed().get().payload["body"] == "{"
