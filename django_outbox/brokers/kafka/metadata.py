"""Ask the brokers for their topics."""

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from django_outbox.brokers.kafka.health import Health

REQUEST_TIME = 0.5
"""Seconds of one request, between which the connection's errors are read."""


class Metadata:
    """The topics that a client can see.

    Args:
        request: the method `list_topics` of a client of librdkafka.
        health: the state of that client.
    """

    def __init__(self, request: Callable[..., Any], health: Health) -> None:
        self._request = request
        self._health = health

    def list_topics(
        self, topic: str | None, deadline: float, read_events: Callable[[], object]
    ) -> dict[str, KafkaError | None]:
        """Return topics with their errors. If no broker responds, the client is not connected afterwards.

        Args:
            topic: the topic to ask for; None for all.
            deadline: when to give up, by the monotonic clock. It ends earlier if no broker can be reached.
            read_events: lets the client report its errors.
        """
        health = self._health
        wanted = {"topic": topic} if topic else {}
        while True:
            seconds = max(min(REQUEST_TIME, deadline - time.monotonic()), 0.01)
            try:
                found = self._request(**wanted, timeout=seconds)
            except KafkaException as error:
                read_events()
                if health.is_broken or health.all_down or time.monotonic() >= deadline:
                    health.is_connected = False
                    health.reason = health.reason or health.explain(error.args[0])
                    return {}
            else:
                health.note_connection()
                return {name: each.error for name, each in found.topics.items()}
