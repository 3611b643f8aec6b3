"""The connections of a client of librdkafka, as far as its errors and responses show."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from django_outbox.brokers.kafka.errors import explain
from django_outbox.brokers.kafka.options import servers, without_secrets
from django_outbox.utils.text import one_line

REQUEST_TIME = 0.5
"""Seconds of one request, between which the connection's errors are read."""


class ConnectionState:
    """The state of a client's connections. It does not refer to the client, which refers to its `note_error`.

    It is connected if a broker has responded, and not all have failed since.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self.is_connected = False
        self.is_broken = False
        self.all_down = False
        self.reason = ""

    def note_error(self, error: KafkaError) -> None:
        """Keep the reason of a failed connection. librdkafka continues to reconnect."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.all_down = True
            self.is_connected = False
            self.reason = self.reason or self.explain(error)
        else:
            self.reason = self.explain(error)

    def call(self, work: Callable[[float], object], seconds: float) -> None:
        """Call a function in which the client calls its callbacks, and note a fatal error."""
        try:
            work(seconds)
        except KafkaException as error:
            self.is_broken = True
            self.is_connected = False
            self.reason = self.explain(error.args[0])

    def list_topics(self, client: Any, topic: str | None, deadline: float) -> dict[str, KafkaError | None]:
        """Return topics with their errors. If no broker responds, the client is not connected afterwards.

        The client is a producer, or a consumer that has not subscribed yet and so has no records.
        """
        wanted = {"topic": topic} if topic else {}
        while True:
            seconds = max(min(REQUEST_TIME, deadline - time.monotonic()), 0.01)
            try:
                found = client.list_topics(**wanted, timeout=seconds)
            except KafkaException as error:
                self.call(client.poll, 0)
                if self.is_broken or self.all_down or time.monotonic() >= deadline:
                    self.is_connected = False
                    self.reason = self.reason or self.explain(error.args[0])
                    return {}
            else:
                if not self.is_broken:
                    self.is_connected = True
                    self.all_down = False
                    self.reason = ""
                return {name: each.error for name, each in found.topics.items()}

    def explain(self, error: KafkaError) -> str:
        """Return the reason of an error with the brokers' addresses, without passwords."""
        reason = one_line(without_secrets(explain(error), self._config))
        return f"Kafka at {servers(self._config)}: {reason}"
