"""A publisher under test: what the contract suite needs to know about it and its broker."""

import abc
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django_outbox.brokers import Publisher
from django_outbox.messages import Message
from tests.support.claimed import make_message
from tests.support.proxies import Proxies


@dataclass(frozen=True)
class Received:
    """A message as a consumer of the broker sees it.

    `headers` has everything that is sent besides the body and the ID, with names as the broker carries them.
    """

    message_id: str
    body: bytes
    type: str = ""
    key: str = ""
    headers: dict[str, Any] | None = None


class Subject(abc.ABC):
    """A publisher and its broker.

    Attributes:
        topic: the topic of the messages: a destination of this subject's own.
        largest: bytes of a payload that the broker has to take.
        order: whether `received` returns messages of different keys in the order of their arrival, too.
        many: a number of messages, at least 100, that the broker takes within a second.
    """

    topic = ""
    largest = 1024 * 1024
    order = True
    many = 1500

    def __init__(self) -> None:
        self._made: list[Publisher] = []

    @abc.abstractmethod
    def make(self, **options: Any) -> Publisher:
        """Return a publisher with these options besides those that name the broker and the destination."""

    @abc.abstractmethod
    def received(self) -> Sequence[Received]:
        """Return what arrived since the last call."""

    def publisher(self, **options: Any) -> Publisher:
        """Return a publisher that is closed at the end."""
        self._made.append(self.make(**options))
        return self._made[-1]

    def messages(self, *payloads: bytes, **fields: Any) -> list[Message]:
        """Return a message for each payload."""
        return [make_message(self.topic, payload, **fields) for payload in payloads]

    def close(self) -> None:
        """Close the publishers, and delete the destination."""
        for publisher in self._made:
            publisher.close()


class BrokerSubject(Subject):
    """A subject whose broker is another process, which may be out of reach.

    Attributes:
        secret: the password, token or key among the options of `with_secret`.
    """

    secret = "s3cret"

    @abc.abstractmethod
    def with_secret(self) -> Publisher:
        """Return a publisher whose options contain `secret`, and whose broker cannot be reached, or refuses it."""

    @abc.abstractmethod
    def go_down(self) -> None:
        """Make the broker unreachable for all publishers, and end their connections."""

    @abc.abstractmethod
    def come_back(self) -> None:
        """Make it reachable again."""

    @abc.abstractmethod
    def poison(self) -> Message:
        """Return a message that the broker or its protocol refuses, while it accepts others."""


class ProxiedSubject(BrokerSubject):
    """A subject whose broker is reached through a proxy.

    Args:
        broker_port: the port of the broker.

    Attributes:
        port: the port of the proxy.
    """

    def __init__(self, broker_port: int) -> None:
        super().__init__()
        self._proxies = Proxies().__enter__()
        self._proxy = self._proxies.open(broker_port)
        self.port = self._proxy.port

    def go_down(self) -> None:
        self._proxy.go_down()

    def come_back(self) -> None:
        self._proxy.come_back()

    def close(self) -> None:
        super().close()
        self._proxies.__exit__()


def unique_name() -> str:
    """Return a name for a destination."""
    return f"outbox-test-{uuid.uuid4()}"
