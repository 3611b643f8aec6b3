"""The publisher for NATS JetStream."""

from collections.abc import Sequence
from typing import Any

from django_outbox.brokers.nats import JetStreamPublisher
from django_outbox.messages import Message
from tests.publishers.subjects.base import ProxiedSubject, Received
from tests.support.claimed import make_message
from tests.support.nats.tools import Nats, Stored, nats_port, nats_url


class JetStreamSubject(ProxiedSubject):
    # `max_payload` is 1 MiB by default, headers included.
    largest = 1024 * 1024 - 1024

    def __init__(self) -> None:
        super().__init__(nats_port())
        self._nats = Nats()
        self.topic = self._nats.stream()

    def make(self, **options: Any) -> JetStreamPublisher:
        return JetStreamPublisher("default", servers=nats_url(port=self.port), **options)

    def with_secret(self) -> JetStreamPublisher:
        return JetStreamPublisher("default", servers=nats_url(port=self.port, login=f"outbox:{self.secret}"))

    def received(self) -> Sequence[Received]:
        return [_read(each) for each in self._nats.take(self.topic)]

    def poison(self) -> Message:
        return make_message(self.topic, b"2", headers={"tenant": "a\r\nb"})

    def close(self) -> None:
        super().close()
        self._nats.__exit__()


def _read(stored: Stored) -> Received:
    headers = stored.headers
    return Received(
        headers["outbox-message-id"], stored.data, headers["outbox-type"], headers.get("outbox-key", ""), headers
    )
