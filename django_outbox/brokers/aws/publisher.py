"""The common base of the publishers for Amazon SQS and Amazon SNS."""

import abc
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from django_outbox.after_fork import after_fork
from django_outbox.brokers.aws.call import AWSCall, Request
from django_outbox.brokers.aws.client import AWSClient, ClientOptions, call_within, send_all
from django_outbox.brokers.aws.encoding import EntryEncoder
from django_outbox.brokers.aws.errors import Kind, Problem, explain_failure, explain_refusal
from django_outbox.brokers.publisher import Publisher
from django_outbox.logs import logger
from django_outbox.messages import Message, Outcome

T = TypeVar("T")

REPORT_INTERVAL = 60.0
"""Seconds between two log lines about a destination whose messages are set aside."""

MAX_REPORTED = 1000
"""Maximum number of destinations whose last log line is remembered: names that contain keys may be many."""


class AWSPublisher(Publisher):
    """Sends batch requests, several at a time, and reads an outcome for each entry.

    Args:
        alias: the publisher's name in the settings.
        service: the name of the service in boto3.
        options: the options of the client.
        encoder: encodes messages.
    """

    # Within a request, AWS may refuse a message and accept a later one of the same group, and requests that are in
    # flight together arrive in any order. So each call gets at most one message per key. The next one is sent after
    # AWS has accepted it; a request that arrives after its timeout changes no order, because AWS drops duplicates.
    keeps_order = False

    def __init__(self, alias: str, *, service: str, options: ClientOptions, encoder: EntryEncoder) -> None:
        super().__init__(alias)
        self._service = service
        self._options = options
        self.max_payload_bytes = options.max_message_bytes
        self._destination = encoder.destination
        self._encoder = encoder
        self._is_ready = False
        self._start_over()
        after_fork(self, type(self)._start_over)

    def describe(self) -> str:
        where = self._options.endpoint_url or self._options.region
        return f"{self.broker_name}{f' at {where}' if where else ''}, {self._destination.text!r}"

    def prepare(self) -> str:
        if self._is_ready:
            return ""
        problem = self._call(self._probe)
        # An action that is not allowed shows that the credentials are valid.
        if problem is not None and problem.kind in (Kind.INTERNAL, Kind.CREDENTIALS):
            self._note(problem)
            return problem.text
        self._is_ready = True
        return ""

    def check(self) -> Sequence[str]:
        self._is_ready = False
        reason = self.prepare()
        if reason or not self._destination.is_fixed:
            return [reason] if reason else []
        name = self._destination.text
        limit = self._call(lambda client: self._read_limit(client, name))
        if isinstance(limit, Problem):
            return [f"{name} cannot be read: {limit.text}"]
        ours = self._options.max_message_bytes
        if limit < ours:
            return [
                f"{name} takes messages of at most {limit:,} bytes, but max_message_bytes is {ours:,}; raise its "
                "MaximumMessageSize, or lower max_message_bytes"
            ]
        return []

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        options = self._options
        call = AWSCall(messages, self._encoder, self.broker_name, one_destination=self._destination.is_fixed)
        requests = call.requests(options.max_message_bytes)
        if requests:
            send_all(
                requests,
                lambda request: self._send(request, call),
                self._slots,
                concurrency=options.concurrency,
                timeout=options.timeout,
            )
        self._is_ready = not call.outage and (call.has_response or not requests)
        return call.result()

    def name_destination(self, message: Message) -> str:
        return self._destination.render(message)

    def close(self) -> None:
        self._client.drop()
        self._is_ready = False

    @abc.abstractmethod
    def _probe(self, client: Any) -> None:
        """Call an action, to see whether the service responds and accepts the credentials."""

    @abc.abstractmethod
    def _read_limit(self, client: Any, destination: str) -> int:
        """Return MaximumMessageSize of a queue or topic, in bytes."""

    @abc.abstractmethod
    def _send_batch(self, client: Any, destination: str, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Send a batch request, and return the response."""

    def _send(self, request: Request, call: AWSCall) -> None:
        if call.outage:
            return
        if request.destination in call.closed:
            call.take_closed(request)
            return
        response = self._try(lambda client: self._send_batch(client, request.destination, request.entries))
        if isinstance(response, Problem):
            call.take_refusal(request, response)
            problems = [response]
        else:
            problems = call.take_response(request, response)
        for problem in problems:
            self._note(problem, request.destination)

    def _call(self, work: Callable[[Any], T]) -> T | Problem:
        """Call AWS in a thread, for a bounded time."""
        try:
            return call_within(2 * self._options.timeout, lambda: self._try(work))
        except TimeoutError as error:
            return explain_failure(error)

    def _try(self, work: Callable[[Any], T]) -> T | Problem:
        """Call AWS, and return the result or the problem."""
        try:
            return work(self._client.get())
        except ClientError as error:
            return explain_refusal(error)
        except Exception as error:
            return explain_failure(error)

    def _note(self, problem: Problem, destination: str = "") -> None:
        """Read the credentials again if they were refused; log the problem of a destination once a minute."""
        if problem.kind is Kind.CREDENTIALS:
            # They may have been replaced in a file, which boto3 reads only once.
            self._client.drop()
        elif destination and problem.kind in (Kind.THROTTLED, Kind.DENIED, Kind.INTERNAL, Kind.UNKNOWN):
            now = time.monotonic()
            with self._lock:
                if now < self._reported.get(destination, 0.0):
                    return
                if len(self._reported) >= MAX_REPORTED:
                    self._reported.clear()
                self._reported[destination] = now + REPORT_INTERVAL
            logger.warning("Publisher %r: %r: %s", self.alias, destination, problem.text)

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(self._options.concurrency)
        self._client = AWSClient(self._service, self._options)
        self._is_ready = False
        self._reported: dict[str, float] = {}
