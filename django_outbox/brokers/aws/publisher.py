"""The publishers for Amazon SQS and Amazon SNS, and their common base: requests in threads that end in time."""

import abc
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.aws.call import AWSCall, AWSRequest
from django_outbox.brokers.aws.encoding import AWSEncoder
from django_outbox.brokers.aws.errors import Kind, Problem, explain_failure, explain_refusal
from django_outbox.brokers.options import CONNECT_TIMEOUT, Template, UrlOption, require_number, require_seconds
from django_outbox.brokers.parallel import send_in_parallel
from django_outbox.brokers.publisher import Publisher
from django_outbox.messages import Message, Outcome
from django_outbox.utils.threads import Threads, after_fork

THREAD_NAME = "outbox-aws"

MAX_MESSAGE_BYTES = 1024 * 1024
"""Maximum number of bytes of a request of Amazon SQS, and of Amazon SNS if the topic permits it:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
https://docs.aws.amazon.com/sns/latest/dg/large-message-payloads.html"""

DEFAULT_MESSAGE_BYTES = 256 * 1024
"""MaximumMessageSize of a topic that does not set it:
https://docs.aws.amazon.com/sns/latest/dg/large-message-payloads.html"""

MIN_MESSAGE_BYTES = 1024
"""Minimum of MaximumMessageSize of a queue or topic."""

MAX_CONCURRENCY = 1000

ENDPOINT = UrlOption("endpoint_url", "http://localhost:4566", ("http", "https"))

SESSION_KEYS = ("profile_name", "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_account_id")

_ARN = re.compile(r"arn:[a-z-]+:sns:([a-z0-9-]+):[^:]+:.+")


class Service(NamedTuple):
    """The names of a service in boto3: of itself, its methods, and their arguments."""

    name: str
    probe: str
    send: str
    destination: str
    entries: str
    body: str


@dataclass(kw_only=True, eq=False, repr=False)
class AWSPublisher(Publisher):
    """Sends batch requests, several at a time, and reads an outcome for each entry.

    `SQSPublisher` describes the options. No error shows credentials.
    """

    service: ClassVar[Service]

    region: str | None = None
    endpoint_url: str | None = None
    session: Mapping[str, str] | None = None
    timeout: float = 30.0
    concurrency: int = 10
    max_message_bytes: int = MAX_MESSAGE_BYTES
    _client: Any = field(init=False, default=None)
    _is_ready: bool = field(init=False, default=False)

    # Within a request, AWS may refuse a message and accept a later one of the same group, and requests that are in
    # flight together arrive in any order. So each call gets at most one message per key. The next one is sent after
    # AWS has accepted it; a request that arrives after its timeout changes no order, because AWS drops duplicates.
    keeps_order = False

    def __post_init__(self) -> None:
        require_seconds("timeout", self.timeout)
        require_number("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        require_number("max_message_bytes", self.max_message_bytes, MIN_MESSAGE_BYTES, MAX_MESSAGE_BYTES)
        if self.endpoint_url is not None and "@" in ENDPOINT.read_one(self.endpoint_url).netloc:
            raise ImproperlyConfigured("endpoint_url contains a user or a password; set the option session instead.")
        session: object = self.session
        if session is not None and not (isinstance(session, Mapping) and set(session) <= set(SESSION_KEYS)):
            raise ImproperlyConfigured(
                f"session must be a dict with any of the keys {', '.join(SESSION_KEYS)}; "
                "the region is the option region."
            )
        self.max_payload_bytes = self.max_message_bytes
        self._destination = self._read_destination()
        self._encoder = AWSEncoder(self._destination, self.max_message_bytes, self.service.body)
        self._start_over()
        after_fork(self, type(self)._start_over)

    def describe(self) -> str:
        where = self.endpoint_url or self.region
        return f"{self.broker_name}{f' at {where}' if where else ''}, {self._destination.text!r}"

    def prepare(self) -> str:
        if self._is_ready:
            return ""
        problem = self._probe()
        # An action that is not allowed shows that the credentials are valid.
        if problem is not None and problem.kind in (Kind.INTERNAL, Kind.CREDENTIALS):
            return problem.text
        self._is_ready = True
        return ""

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        call = AWSCall(messages, self._encoder, self.broker_name, one_destination=self._destination.is_fixed)
        requests = call.requests(self.max_message_bytes)
        if requests:
            send_in_parallel(
                requests,
                partial(self._send, call),
                thread_name=THREAD_NAME,
                concurrency=self.concurrency,
                begin_seconds=self.timeout,
                wait_seconds=2 * self.timeout,
            )
        self._is_ready = not call.outage and (call.has_response or not requests)
        return call.result()

    def name_destination(self, message: Message) -> str:
        return self._destination.render(message)

    def close(self) -> None:
        self._drop_client()
        self._is_ready = False

    @abc.abstractmethod
    def _read_destination(self) -> Template:
        """Return the queue or topic, as the options name it."""

    def _get_client(self) -> Any:
        """Return boto3's client, which threads may share, unlike a session. Constructing it may take seconds.

        https://docs.aws.amazon.com/boto3/latest/guide/clients.html#multithreading-or-multiprocessing-with-clients
        """
        with self._lock:
            if self._client is None:
                session = boto3.session.Session(region_name=self.region, **(self.session or {}))
                self._client = session.client(
                    self.service.name, endpoint_url=self.endpoint_url, config=self._make_config()
                )
            return self._client

    def _make_config(self) -> Config:
        return Config(
            # Entries are valid as they are encoded; botocore would take a sixth of the time to verify them.
            parameter_validation=False,
            tcp_keepalive=True,
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=min(CONNECT_TIMEOUT, self.timeout),
            read_timeout=self.timeout,
            # Each worker has that many requests in flight.
            max_pool_connections=MAX_CONCURRENCY,
        )

    def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _send(self, call: AWSCall, request: AWSRequest) -> None:
        if call.skip(request):
            return
        arguments = {self.service.destination: request.destination, self.service.entries: request.entries}
        response = self._try(self.service.send, **arguments)
        if isinstance(response, Problem):
            call.take_refusal(request, response)
        else:
            call.take_response(request, response)

    def _probe(self) -> Problem | None:
        """Return the problem of a request that shows whether the service responds and accepts the credentials."""
        found: list[Mapping[str, Any] | Problem] = []
        threads = Threads()
        threads.start(lambda: found.append(self._try(self.service.probe)), name=THREAD_NAME)
        threads.wait(2 * self.timeout)
        if not found:
            return Problem(Kind.INTERNAL, f"no response within {2 * self.timeout:g} s")
        return found[0] if isinstance(found[0], Problem) else None

    def _try(self, method: str, **arguments: object) -> Mapping[str, Any] | Problem:
        try:
            response: Mapping[str, Any] = getattr(self._get_client(), method)(**arguments)
            return response
        except ClientError as error:
            problem = explain_refusal(error)
        except Exception as error:
            problem = explain_failure(error)
        if problem.kind is Kind.CREDENTIALS:
            # They may have been replaced in a file, which boto3 reads only once.
            self._drop_client()
        return problem

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._client = None
        self._is_ready = False


@dataclass(kw_only=True, eq=False, repr=False)
class SQSPublisher(AWSPublisher):
    """Sends messages to queues of Amazon SQS, with SendMessageBatch.

    A message is accepted when AWS has accepted its entry, which is then stored on several servers. It is rejected if
    AWS refuses it for good, or if its queue does not exist and the name has placeholders. It is set aside if its queue
    is throttled, or must not be written to while others may. If AWS does not respond or refuses the credentials, or if
    the only queue is missing or must not be written to, messages are unanswered. Messages that are set aside or
    unanswered use up no attempts.

    Attributes of a message are `outbox-message-id`, `outbox-type`, `outbox-occurred-at`, `content-type`, `outbox-key`
    unless the key is empty, `outbox-headers` with all headers as a JSON object, and `traceparent` and `tracestate` of
    the headers. For a FIFO queue, the key is the MessageGroupId (the ID of the message if it has no key), and the ID of
    the message the MessageDeduplicationId.

    Args:
        alias: the publisher's name in the settings.
        queue_url: the URL of the queue, in which `{topic}` stands for a message's topic, `{type}` for its type and
            `{key}` for its key.
        region: the region. Defaults to boto3's configuration, such as `AWS_DEFAULT_REGION`.
        endpoint_url: the URL of the service, for a VPC endpoint or another implementation. Defaults to AWS.
        session: a dict of arguments for `boto3.session.Session`, such as `profile_name`. By default, credentials are
            found as boto3 always finds them.
        timeout: seconds that AWS has to respond to a request. After that time, a call of `publish` begins no further
            requests. Connecting may take 5 of these seconds.
        concurrency: maximum number of requests in flight of each worker.
        max_message_bytes: maximum number of bytes of a request, attributes included, and so of a message.

    Raises:
        ImproperlyConfigured: an option is invalid; the error names the option and the remedy, and never shows
            credentials.
    """

    messaging_system = "aws_sqs"
    broker_name = "Amazon SQS"
    service = Service("sqs", "list_queues", "send_message_batch", "QueueUrl", "Entries", "MessageBody")

    queue_url: str = ""

    def _read_destination(self) -> Template:
        url: object = self.queue_url
        if not isinstance(url, str) or not url.startswith(("https://", "http://")):
            raise ImproperlyConfigured(
                f"queue_url is {self.queue_url!r}; it must be a URL such as "
                "'https://sqs.eu-central-1.amazonaws.com/123456789012/orders'."
            )
        return Template("queue_url", self.queue_url)


@dataclass(kw_only=True, eq=False, repr=False)
class SNSPublisher(AWSPublisher):
    """Publishes messages to topics of Amazon SNS, with PublishBatch.

    Outcomes, attributes and FIFO topics are as for `SQSPublisher`. Accepted means that AWS has
    stored the message; it does not mean that a subscriber has received it.

    Args:
        alias: the publisher's name in the settings.
        topic_arn: the ARN of the topic, in which `{topic}` stands for a message's topic, `{type}` for its type and
            `{key}` for its key, but not in place of the region.
        region: not used: the region is the one in the ARN.
        max_message_bytes: maximum number of bytes of a request, attributes included, and so of a message. At most
            MaximumMessageSize of the topic.
        options: the other options, as for `SQSPublisher`.

    Raises:
        ImproperlyConfigured: an option is invalid; the error names the option and the remedy, and never shows
            credentials.
    """

    messaging_system = "aws.sns"
    broker_name = "Amazon SNS"
    service = Service("sns", "list_topics", "publish_batch", "TopicArn", "PublishBatchRequestEntries", "Message")

    topic_arn: str | None = None
    max_message_bytes: int = DEFAULT_MESSAGE_BYTES

    def _read_destination(self) -> Template:
        found = _ARN.fullmatch(self.topic_arn) if isinstance(self.topic_arn, str) else None
        if found is None:
            raise ImproperlyConfigured(
                f"topic_arn is {self.topic_arn!r}; it must be an ARN such as "
                "'arn:aws:sns:eu-central-1:123456789012:orders'."
            )
        self.region = found[1]
        return Template("topic_arn", self.topic_arn)
