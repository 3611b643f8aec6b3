"""A source under test: what the contract suite of consumers needs to know about it and its broker."""

import abc
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from django_outbox.brokers import Publisher
from tests.support.proxies import Proxies


class Sent(NamedTuple):
    """A message as another program sends it; blank fields are left out.

    `key` and `headers` are sent as the outbox's own publisher for this broker sends them. `properties` are further ones
    that only this broker has.
    """

    body: bytes
    message_id: str = ""
    type: str = ""
    key: str = ""
    headers: dict[str, Any] = {}
    properties: dict[str, Any] = {}


class Source(abc.ABC):
    """Something that a consumer reads, such as a queue. It is made for one test.

    Attributes:
        backend: the path of the consumer's class.
        has_text_headers: whether the values of headers are text.
        name: the topic of messages that say nothing else.
        port: the port of the broker on this machine.
        sent: number of messages that were sent since the test has read the source.
    """

    backend: ClassVar[str]
    has_text_headers: ClassVar[bool] = False
    name: str
    port: int
    sent: int = 0

    @property
    @abc.abstractmethod
    def options(self) -> dict[str, Any]:
        """The consumer's options."""

    @abc.abstractmethod
    def make_publisher(self) -> Publisher:
        """Construct this package's publisher for the broker, which sends messages with this topic to the source."""

    @abc.abstractmethod
    def at(self, port: int) -> dict[str, Any]:
        """Return those of the options that hold the broker's address, with another port of this machine."""

    def through(self, proxies: Proxies) -> tuple[dict[str, Any], Callable[[], None]]:
        """Return the options with which a consumer connects through a proxy, and a function that cuts connections."""
        proxy = proxies.open(self.port)
        return self.at(proxy.port), proxy.cut

    def put(self, messages: Sequence[Sent]) -> None:
        """Send messages in their order."""
        self.sent += len(messages)
        self._put(messages)

    @abc.abstractmethod
    def _put(self, messages: Sequence[Sent]) -> None: ...

    @abc.abstractmethod
    def unsettled(self) -> int:
        """Return the number of messages that the broker still has for the consumers."""

    def receivable(self) -> int:
        """Return how many of them a consumer that is opened now would receive."""
        return self.unsettled()

    @abc.abstractmethod
    def close(self) -> None:
        """Delete the source."""

    def send(self, *payloads: Any, raw: bytes | None = None, **fields: Any) -> list[str]:
        """Send payloads as JSON, or one raw body, and return the IDs of the messages.

        Args:
            payloads: the payloads.
            raw: the body.
            fields: fields of `Sent`; by default each message has its own ID and the type `order.created`.
        """
        bodies = [json.dumps(payload).encode() for payload in payloads] if raw is None else [raw]
        sent = [Sent(body, **{"message_id": str(uuid.uuid4()), "type": "order.created", **fields}) for body in bodies]
        self.put(sent)
        return [message.message_id for message in sent]
