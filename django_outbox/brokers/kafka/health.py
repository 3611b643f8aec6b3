"""What a client of librdkafka reports about its connections."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError

from django_outbox.brokers.kafka.errors import explain
from django_outbox.brokers.kafka.options import servers, without_secrets
from django_outbox.error_text import one_line


class Health:
    """The state of a client's connections, derived from its errors and responses. It does not refer to the client.

    Args:
        config: the options of the client.

    Attributes:
        is_connected: whether a broker has responded, and not all have failed since.
        is_broken: whether the client cannot be used any more.
        all_down: whether no broker could be reached since one has responded.
        reason: why the connection failed, or the client broke.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self.is_connected = False
        self.is_broken = False
        self.all_down = False
        self.reason = ""

    def note_connection(self) -> None:
        """Note that a broker has responded."""
        if not self.is_broken:
            self.is_connected = True
            self.all_down = False
            self.reason = ""

    def note_error(self, error: KafkaError) -> None:
        """Keep the reason of a failed connection. librdkafka goes on trying."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.all_down = True
            self.is_connected = False
            self.reason = self.reason or self.explain(error)
        else:
            self.reason = self.explain(error)

    def note_end(self, error: KafkaError) -> None:
        """Note a fatal error: the client cannot be used any more."""
        self.is_broken = True
        self.is_connected = False
        self.reason = self.explain(error)

    def explain(self, error: KafkaError) -> str:
        """Return the reason of an error with the brokers' addresses, without passwords."""
        reason = one_line(without_secrets(explain(error), self._config))
        return f"Kafka at {servers(self._config)}: {reason}"
