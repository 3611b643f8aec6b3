"""The connections of a client of librdkafka, as far as its errors and responses show."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from django_outbox.brokers.consumer import Unavailable
from django_outbox.brokers.kafka.errors import explain, meaning_of
from django_outbox.brokers.kafka.options import servers, without_secrets
from django_outbox.utils.text import one_line

REQUEST_TIME = 0.5
"""Seconds of one request, between which the connection's errors are read."""


class ConnectionState:
    """The state of a client's connections. It does not refer to the client, which refers to its `note_error`.

    Attributes:
        is_connected: whether a broker has responded, and not all have failed since.
        all_down: whether no broker could be reached since one has responded.
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
        """Do what lets the client call its callbacks, and note a fatal error."""
        try:
            work(seconds)
        except KafkaException as error:
            self.is_broken = True
            self.is_connected = False
            self.reason = self.explain(error.args[0])

    def list_topics(self, client: Any, topic: str | None, deadline: float) -> dict[str, KafkaError | None]:
        """Return topics with their errors. If no broker responds, the client is not connected afterwards.

        Args:
            client: a producer, or a consumer that has not subscribed yet and so has no records.
            deadline: when to give up, by the monotonic clock. It ends earlier if no broker can be reached.
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


def check_topics(
    state: ConnectionState, client: Any, topics: Sequence[str], seconds: float, *, match_whole_names: bool
) -> list[str]:
    """Return warnings about topics and patterns of topics that a consumer is to read.

    Args:
        seconds: when to give up.
        match_whole_names: whether the brokers match the patterns, as Kafka 4 does.

    Raises:
        Unavailable: the brokers cannot be reached, or one of the topics cannot be read.
    """
    deadline = time.monotonic() + seconds
    warnings = []
    for topic in topics:
        wanted = None if topic.startswith("^") else topic
        found = state.list_topics(client, wanted, deadline)
        if not state.is_connected:
            raise Unavailable(state.reason)
        error = found.get(topic)
        if error is not None:
            remedy = meaning_of(error).remedy.replace("write to", "read").replace("option topic", "option topics")
            raise Unavailable(f"topic {topic!r}: {error.str()}{': ' if remedy else ''}{remedy}")
        if wanted is None and match_whole_names and not _matches_any(topic, found):
            warnings.append(
                f"the pattern {topic!r} matches no topic. With group.protocol consumer, it must match the whole "
                f"name: write {topic + '.*'!r} for the topics whose names begin with it"
            )
    return warnings


def _matches_any(pattern: str, topics: Iterable[str]) -> bool:
    """Return whether a pattern matches a topic as Kafka 4 matches it. What only Kafka can compile counts as a match."""
    with suppress(re.error):
        return any(map(re.compile(pattern).fullmatch, topics))
    return True
