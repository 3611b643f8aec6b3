"""A stream of NATS JetStream with a durable consumer."""

import datetime
from collections.abc import Sequence
from typing import Any

from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo

from django_outbox.brokers.nats import JetStreamPublisher
from tests.inbox.sources.base import Sent, Source
from tests.support.nats.tools import Nats, nats_port, nats_url

ACK_WAIT = 1.0
"""Seconds after which a message that a dead process has left is delivered again."""

HEADERS = {"message_id": "outbox-message-id", "type": "outbox-type", "key": "outbox-key"}


class JetStreamSource(Source):
    backend = "django_outbox.brokers.nats.JetStreamConsumer"
    has_text_headers = True

    def __init__(self) -> None:
        self.nats = Nats()
        self.name = self.nats.stream()
        self.port = nats_port()
        config = ConsumerConfig(durable_name="billing", ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT)
        self.nats.run(lambda: self.nats.js.add_consumer(self.name, config))

    @property
    def options(self) -> dict[str, Any]:
        return {"servers": nats_url(), "stream": self.name, "durable": "billing"}

    def make_publisher(self) -> JetStreamPublisher:
        return JetStreamPublisher("shop", servers=nats_url())

    def at(self, port: int) -> dict[str, Any]:
        return {"servers": nats_url(port=port)}

    def _put(self, messages: Sequence[Sent]) -> None:
        for each in messages:
            found = {name: getattr(each, field) for field, name in HEADERS.items() if getattr(each, field)}
            self.nats.publish(self.name, each.body, {**found, **each.headers, **each.properties})

    def unsettled(self) -> int:
        info = self._info()
        return (info.num_pending or 0) + (info.num_ack_pending or 0)

    def receivable(self) -> int:
        """Count messages in hand of a dead process only after the server's wait for them has ended."""
        info = self._info()
        waiting = info.num_ack_pending or 0
        if waiting:
            assert info.delivered is not None
            last = info.delivered.last_active
            if last is not None and (datetime.datetime.now(datetime.timezone.utc) - last).total_seconds() < ACK_WAIT:
                waiting = 0
        return (info.num_pending or 0) + waiting

    def close(self) -> None:
        self.nats.__exit__()

    def _info(self) -> ConsumerInfo:
        info: ConsumerInfo = self.nats.run(lambda: self.nats.js.consumer_info(self.name, "billing"))
        return info
