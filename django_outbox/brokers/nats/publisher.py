"""A publisher for NATS JetStream: many messages in flight over one connection for all threads."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.cloudevents import validate_format
from django_outbox.brokers.nats.encoding import NatsEncoder
from django_outbox.brokers.nats.options import SUBJECT_RULES, NatsOptions, is_subject
from django_outbox.brokers.nats.publisher_connection import NatsCall, NatsPublisherConnection
from django_outbox.brokers.options import Template
from django_outbox.brokers.publisher import Publisher
from django_outbox.messages import Message, Outcome
from django_outbox.utils.threads import after_fork


@dataclass(kw_only=True, eq=False, repr=False)
class JetStreamPublisher(NatsOptions, Publisher):
    """Publishes to NATS JetStream.

    A message is accepted when a stream has confirmed that it is stored (on the majority of its replicas). It is
    rejected if no stream has its subject, if it is too large, or if NATS cannot carry it. If its stream is full or has
    no leader, it is set aside for a few seconds, and no attempts are used up. If the connection is lost or
    unresponsive, or JetStream itself is unavailable, messages that are not confirmed are unanswered, and the next call
    of `publish` reconnects.

    The header `Nats-Msg-Id` is the message's ID with the subject, by which a stream recognizes a message that it has
    stored within its duplicate window: two minutes, unless the stream sets another one. The other headers are
    `outbox-message-id`, `outbox-type`, `outbox-key`, `outbox-occurred-at` and `content-type`, and the message's own.

    Args:
        alias: the publisher's name in the settings.
        servers: `nats://user:password@host:4222`, `nats://token@host:4222`, or `tls://` for TLS; for a cluster, a list
            with a URL for each server. One that responds is used.
        subject: the subject, in which `{topic}` stands for the message's topic (its type if that is empty), `{type}`
            for its type and `{key}` for its key.
        credentials: the path of a `.creds` file. It is read for each connection.
        ssl: for `tls://`, a dict with any of `cafile` (the authority to trust instead of the system's), `certfile`
            and `keyfile` (the client's certificate), all paths of PEM files. The server is always verified.
        inbox_prefix: the first tokens of the subjects on which responses arrive; the user must be permitted to
            subscribe to `_INBOX.>`, or to this prefix instead of `_INBOX`.
        format: `plain`, or `cloudevents` for CloudEvents with their attributes in headers.
        source: the `source` of CloudEvents, a URI reference such as `/shop`.
        timeout: seconds for connecting, all servers together, and for a batch to be confirmed. At most a day. Each
            server has its share of it, at most 5 seconds.

    Raises:
        ImproperlyConfigured: an option is invalid; the error names the option and the remedy, and never shows a
            password.
    """

    # A message of a batch may be accepted after an earlier one was not: its stream was full for a moment, or the old
    # leader of the stream lost the earlier one and the new leader stored the later one.
    keeps_order = False

    messaging_system: ClassVar[str] = "nats"
    broker_name = "NATS JetStream"

    subject: str = "{topic}"
    format: Literal["plain", "cloudevents"] = "plain"
    source: str = ""
    max_in_flight: int = field(init=False, default=1000)
    """Maximum number of messages that were sent and are not confirmed. NATS refuses more than 10,000 for one stream
    (`max_buffered_msgs`)."""
    _connection: NatsPublisherConnection | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_format(self.format, self.source)
        self._subject = Template("subject", self.subject)
        if not is_subject(self.subject.format(topic="topic", type="type", key="key")):
            raise ImproperlyConfigured(f"subject is {self.subject!r}; {SUBJECT_RULES}.")
        encoder = NatsEncoder(subject=self._subject, format=self.format, source=self.source)
        self._encode = encoder.encode
        self._lock = threading.Lock()
        after_fork(self, type(self)._start_over)

    def describe(self) -> str:
        servers = ", ".join(server.url for server in self.nodes)
        return f"NATS JetStream at {servers}, subject {self.subject!r}"

    def prepare(self) -> str:
        return self._usable_connection().wait_until_ready()

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        call = NatsCall(messages, self._encode)
        while call.missing and not self._usable_connection().submit(call):
            pass
        call.wait()
        if call.refusal is not None:
            raise call.refusal
        return call.complete()

    def name_destination(self, message: Message) -> str:
        return self._subject.render(message)

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _usable_connection(self) -> NatsPublisherConnection:
        with self._lock:
            if self._connection is None or self._connection.error:
                self._connection = NatsPublisherConnection(self, self.max_in_flight)
            return self._connection

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        _of_parents.append(self._connection)
        self._connection = None


_of_parents: list[NatsPublisherConnection | None] = []
"""Connections of the parent process. They are kept, because their end would close what the parent still uses."""
