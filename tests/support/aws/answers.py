"""A server in front of moto that answers chosen requests itself, as Amazon SQS does in JSON (`awsJson1_0`).

moto neither throttles nor fails entries, and accepts every signature. All other requests are passed on.
"""

import http.client
import json
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from django_outbox.brokers.aws import SQSPublisher
from django_outbox.messages import Message
from tests.publishers.subjects.base import unique_name
from tests.support.aws.server import CREDENTIALS, REGION, address, client
from tests.support.claimed import make_message

BATCH = "SendMessageBatch"


@dataclass(frozen=True)
class Refusal:
    code: str
    message: str = "the reason"
    status: int = 400


@dataclass(frozen=True)
class Failures:
    """AWS fails these entries of a batch, by their place: the code, and whether it is the sender's fault."""

    entries: Mapping[int, tuple[str, bool]]


@dataclass(frozen=True)
class Raw:
    """Something that is not an answer of AWS, such as a page of a proxy in between."""

    status: int
    body: bytes


@dataclass(frozen=True)
class Trickle:
    """The beginning of an answer, a byte at a time for some seconds, so that no single read lasts long."""

    seconds: float


Answer = Refusal | Failures | Raw | Trickle


@dataclass(frozen=True)
class Seen:
    """A request: its action, and for a batch its entries, each with `Id`, `MessageGroupId` and so on."""

    action: str
    entries: Sequence[Mapping[str, Any]]


class AwsAnswers:
    """The server, in a thread.

    Attributes:
        seen: the requests, in the order of their arrival.
        in_flight: the largest number of batch requests at one time.
        delay: seconds for which each batch request is held.
    """

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.in_flight = 0
        self.delay = 0.0
        self._now_in_flight = 0
        self._answers: dict[str, deque[Answer]] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, action: str, *answers: Answer) -> None:
        """Answer the next requests for an action: the first one with the first answer, and so on."""
        self._answers.setdefault(action, deque()).extend(answers)

    def batches(self) -> list[Seen]:
        return [each for each in self.seen if each.action == BATCH]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, seen: Seen) -> Answer | None:
        with self._lock:
            self.seen.append(seen)
            answers = self._answers.get(seen.action)
            return answers.popleft() if answers else None

    def count(self, change: int) -> None:
        with self._lock:
            self._now_in_flight += change
            self.in_flight = max(self.in_flight, self._now_in_flight)


def _handler(server: AwsAnswers) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen = Seen(self.headers["X-Amz-Target"].partition(".")[2], json.loads(body).get("Entries", []))
            answer = server.take(seen)
            is_batch = seen.action == BATCH
            server.count(is_batch)
            try:
                if is_batch and server.delay:
                    time.sleep(server.delay)
                if answer is None:
                    self._pass_on(body)
                elif isinstance(answer, Trickle):
                    self._trickle(answer.seconds)
                else:
                    self._send(*_write(answer, seen))
            finally:
                server.count(-is_batch)

        def _trickle(self, seconds: float) -> None:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            end = time.monotonic() + seconds
            with suppress(OSError):
                while time.monotonic() < end:
                    self.wfile.write(b" ")
                    time.sleep(0.05)
            self.close_connection = True

        def _pass_on(self, body: bytes) -> None:
            connection = http.client.HTTPConnection(*address(), timeout=60)
            try:
                connection.request("POST", self.path, body, dict(self.headers))
                response = connection.getresponse()
                data = response.read()
                self._send(response.status, data, dict(response.getheaders()))
            finally:
                connection.close()

        def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "connection", "date", "server", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def _write(answer: Refusal | Failures | Raw, seen: Seen) -> tuple[int, bytes, Mapping[str, str]]:
    if isinstance(answer, Raw):
        return answer.status, answer.body, {"Content-Type": "text/html"}
    content_type = {"Content-Type": "application/x-amz-json-1.0"}
    if isinstance(answer, Refusal):
        error = {"__type": f"com.amazonaws.sqs#{answer.code}", "message": answer.message}
        # SQS once had codes of its own, which the header still names.
        headers = {"x-amzn-query-error": f"AWS.SimpleQueueService.{answer.code};Sender"}
        return answer.status, json.dumps(error).encode(), {**content_type, **headers}
    ids = [each["Id"] for each in seen.entries]
    body = {
        "Successful": [
            {"Id": each, "MessageId": "m", "MD5OfMessageBody": "0"}
            for place, each in enumerate(ids)
            if place not in answer.entries
        ],
        "Failed": [
            {"Id": ids[place], "Code": code, "Message": "the reason", "SenderFault": fault}
            for place, (code, fault) in answer.entries.items()
        ],
    }
    return 200, json.dumps(body).encode(), content_type


class Queue:
    """A queue behind `AwsAnswers`, and its publishers. Amazon SNS shares the code that reads answers."""

    def __init__(self, aws: AwsAnswers, stack: ExitStack) -> None:
        self.topic = unique_name()
        self.url = str(client("sqs").create_queue(QueueName=self.topic)["QueueUrl"])
        self._aws = aws
        self._stack = stack

    def make(self, url: str = "", **options: Any) -> SQSPublisher:
        common: dict[str, Any] = {
            "region": REGION,
            "endpoint_url": self._aws.url,
            "session": CREDENTIALS,
            "timeout": 20.0,
            **options,
        }
        publisher = SQSPublisher("default", queue_url=url or self.url, **common)
        self._stack.callback(publisher.close)
        return publisher

    def make_for_topics(self, **options: Any) -> SQSPublisher:
        """Return a publisher whose queue is named by the topic of a message."""
        return self.make(f"{self.url.rpartition('/')[0]}/{{topic}}", **options)

    def messages(self, count: int, **fields: Any) -> list[Message]:
        return [make_message(self.topic, str(n).encode(), **fields) for n in range(count)]
