"""Amazon SQS: moto's server, in its own process. The limit: boto3 with as many threads, ten messages in a request."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from moto import __version__

from django_outbox.brokers.text_headers import text_headers
from django_outbox.messages import Message
from tests.benchmarks.brokers.base import Broker
from tests.benchmarks.measuring import BenchmarkError
from tests.support.aws.server import CREDENTIALS, REGION, client, endpoint_url

CONCURRENCY = 10
"""Requests in flight, as by default in the publisher."""

REQUEST_SIZE = 10
"""Messages in a request, the maximum of Amazon SQS."""


class SQSQueues(Broker):
    """A standard queue for each topic."""

    label = "SQS (moto)"
    process = ""

    def create(self) -> str:
        self._client = client("sqs", CONCURRENCY)
        self._create_queues()
        return str(__version__)

    def delete(self) -> None:
        for url in self._urls.values():
            self._client.delete_queue(QueueUrl=url)

    def publisher(self, **options: Any) -> dict[str, Any]:
        url = next(iter(self._urls.values())).rpartition("/")[0]
        given = {
            "queue_url": f"{url}/{self.name}-{{topic}}",
            "region": REGION,
            "endpoint_url": endpoint_url(),
            "session": CREDENTIALS,
        }
        return {"BACKEND": "django_outbox.brokers.aws.SQSPublisher", "OPTIONS": given | options}

    def purge(self) -> None:
        # PurgeQueue is allowed once a minute.
        self.delete()
        self._create_queues()

    def count(self) -> int:
        name = "ApproximateNumberOfMessages"
        found = [self._client.get_queue_attributes(QueueUrl=url, AttributeNames=[name]) for url in self._urls.values()]
        return sum(int(each["Attributes"][name]) for each in found)

    @contextmanager
    def sender(self, messages: Sequence[Message]) -> Iterator[Callable[[], None]]:
        requests: list[tuple[str, list[dict[str, Any]]]] = []
        for topic, each in groupby(sorted(messages, key=_destination), key=_destination):
            entries = [_entry(number, message) for number, message in enumerate(each)]
            requests += [
                (self._urls[topic], entries[start : start + REQUEST_SIZE])
                for start in range(0, len(entries), REQUEST_SIZE)
            ]

        def send_batch(request: tuple[str, list[dict[str, Any]]]) -> None:
            url, entries = request
            if self._client.send_message_batch(QueueUrl=url, Entries=entries).get("Failed"):
                raise BenchmarkError("SQS refused a message")

        def send() -> None:
            for _ in pool.map(send_batch, requests):
                pass

        with ThreadPoolExecutor(CONCURRENCY) as pool:
            yield send

    def _create_queues(self) -> None:
        names = {topic: f"{self.name}-{topic}" for topic in self.topics}
        self._urls = {topic: self._client.create_queue(QueueName=names[topic])["QueueUrl"] for topic in names}


def _destination(message: Message) -> str:
    return message.destination


def _entry(number: int, message: Message) -> dict[str, Any]:
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in text_headers(message)}
    return {"Id": str(number), "MessageBody": message.payload.decode(), "MessageAttributes": attributes}
