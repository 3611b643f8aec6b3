"""The options of a consumer."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer as KafkaClient
from confluent_kafka import KafkaException
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.kafka.logs import Log
from django_outbox.brokers.kafka.options import REFUSED_CALLBACKS, require_config, without_secrets

_COMMITS = "offsets are committed after the database's commit"

REFUSED = {
    "group.id": "use the option group instead",
    "enable.auto.commit": f"{_COMMITS}; it is always false",
    "enable.auto.offset.store": f"{_COMMITS}; it is always false",
    "auto.commit.interval.ms": f"{_COMMITS}; remove it",
    "auto.commit.enable": f"{_COMMITS}; remove it",
    "enable.partition.eof": "the consumer needs it; it is always true",
    **REFUSED_CALLBACKS,
}
"""Options of librdkafka that the consumer sets itself, and why."""

DEFAULTS: Mapping[str, Any] = {
    "client.id": "django_outbox",
    # A new group misses nothing.
    "auto.offset.reset": "earliest",
    # The consumer asks the broker again soon after an outage.
    "reconnect.backoff.max.ms": 1000,
    "socket.keepalive.enable": True,
    # Brokers close idle connections.
    "log.connection.close": False,
    # A quarter of the default: the messages ahead are in memory.
    "queued.max.messages.kbytes": 16_384,
}
"""Options that `config` may replace."""

TOPIC = re.compile(r"\^.+|[A-Za-z0-9._-]{1,249}")
"""A topic, or a pattern of topics, which begins with ^."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """What to read, and how.

    Args:
        config: librdkafka's options.
        group: the consumer group.
        topics: the topics, or patterns.
        timeout: seconds until connecting is given up.
    """

    config: Mapping[str, Any]
    group: str
    topics: tuple[str, ...]
    timeout: float


def read_group_options(*, config: object, group: object, topics: object, timeout: float) -> GroupOptions:
    """Validate the options of a consumer group.

    Raises:
        ImproperlyConfigured: an option is invalid. The error never shows a secret.
    """
    if not isinstance(group, str) or not group:
        raise ImproperlyConfigured(f"group is {group!r}; it must be the name of the consumer group, such as 'billing'.")
    names = [topics] if isinstance(topics, str) else topics
    if not isinstance(names, list | tuple) or not names:
        raise ImproperlyConfigured("topics must be a topic, or a list of topics.")
    for name in names:
        if not isinstance(name, str) or not TOPIC.fullmatch(name):
            raise ImproperlyConfigured(
                f"topics has {name!r}; a topic has up to 249 letters, digits, periods, hyphens and underscores, and a "
                "pattern begins with ^."
            )
    found = {
        **DEFAULTS,
        **require_config(config, REFUSED),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
    }
    _try_out(found)
    return GroupOptions(config=found, group=group, topics=tuple(names), timeout=timeout)


def _try_out(config: Mapping[str, Any]) -> None:
    """Let librdkafka validate the options. Without the brokers' addresses it does not connect."""
    left_out = {"bootstrap.servers", "metadata.broker.list", "oauth_cb", "security.protocol"}
    left_out |= {"sasl.mechanism", "sasl.mechanisms"}
    try:
        KafkaClient({name: value for name, value in config.items() if name not in left_out} | {"logger": Log()}).close()
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise ImproperlyConfigured(f"config: {without_secrets(reason, config)}.") from None
