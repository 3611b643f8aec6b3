"""The options of the publisher and the consumer, most of them for librdkafka, and its log."""

import logging
import numbers
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.cimpl import Consumer, Producer
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.options import STALL_SHARE, require_printable
from django_outbox.utils.logs import logger
from django_outbox.utils.text import one_line

EXAMPLE = '{"bootstrap.servers": "kafka-1:9092,kafka-2:9092"}'

_REFUSED = {
    "metadata.broker.list",
    *("on_delivery", "dr_cb", "dr_msg_cb", "error_cb", "stats_cb", "throttle_cb", "log_cb", "logger", "on_commit"),
}

_REFUSED_BY_PUBLISHER = _REFUSED | {
    *("enable.idempotence", "retries", "message.send.max.retries", "acks", "request.required.acks"),
    *("delivery.timeout.ms", "message.timeout.ms", "transactional.id", "transaction.timeout.ms"),
    *("default.topic.config", "delivery.report.only.error"),
}
"""Options of librdkafka that the publisher sets itself, or on which its promises depend."""

_ALWAYS: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    # At the timeout the publisher ends the producer, so that no message is sent later.
    "message.timeout.ms": 0,
}

_DEFAULTS: Mapping[str, Any] = {
    "client.id": "django_outbox",
    # The client asks the broker again soon after an outage.
    "reconnect.backoff.max.ms": 1000,
    "socket.keepalive.enable": True,
    # Brokers close idle connections.
    "log.connection.close": False,
}
"""Options that `config` may replace."""

_PUBLISHER_DEFAULTS: Mapping[str, Any] = {
    **_DEFAULTS,
    # Like Java's producer, so that a key is in the same partition as the records of other services.
    "partitioner": "murmur2_random",
    # Messages wait for more only while a batch is handed over; then all are sent.
    "linger.ms": 20,
    # The default of the brokers' message.max.bytes.
    "message.max.bytes": 1_048_588,
}

_REFUSED_BY_CONSUMER = _REFUSED | {
    *("group.id", "enable.auto.commit", "enable.auto.offset.store", "auto.commit.interval.ms", "auto.commit.enable"),
    *("enable.partition.eof", "auto.offset.reset"),
}
"""Options of librdkafka that the consumer sets itself: a new group begins with the oldest record."""

_INSTEAD = {
    "metadata.broker.list": "bootstrap.servers",
    "group.id": "the option group",
    "delivery.timeout.ms": "the option timeout",
    "message.timeout.ms": "the option timeout",
}
"""What to set instead of some refused options of librdkafka."""

_CONSUMER_DEFAULTS: Mapping[str, Any] = {
    **_DEFAULTS,
    # A quarter of the default, because the messages ahead are in memory.
    "queued.max.messages.kbytes": 16_384,
}

TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

_SECRET = ("password", "secret", "pem", "sasl.oauthbearer.config", "sasl.jaas")


class Log:
    """Stands in for the `logging.Logger` that librdkafka's bindings call.

    Everything is logged as DEBUG: outcomes contain every error, and librdkafka repeats itself during an outage.
    """

    def log(self, level: int, format: str, *arguments: Any) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("librdkafka: %s", one_line(format % arguments, 500), event="broker.client_log")


def read_config(config: object, timeout: float) -> dict[str, Any]:
    """Return librdkafka's options for a producer that gives up after `timeout` seconds."""
    given = _require_config(config, _REFUSED_BY_PUBLISHER)
    if "random" in (given.get("partitioner"), given.get("topic.partitioner")):
        raise ImproperlyConfigured("config: partitioner is 'random', so messages of a key would not stay in order.")
    milliseconds = max(int(timeout * 1000), 10)
    found = {
        **_PUBLISHER_DEFAULTS,
        # A request that gets no response is given up, and retried, before the publisher gives up.
        "socket.timeout.ms": max(milliseconds // 2, 10),
        "request.timeout.ms": max(milliseconds // 2, 10),
        "socket.connection.setup.timeout.ms": max(min(milliseconds // 2, 30_000), 1000),
        # A message for a missing topic waits while brokers may be creating it, for less than makes a partition stalled.
        "topic.metadata.propagation.max.ms": milliseconds // (2 * STALL_SHARE),
        **given,
        **_ALWAYS,
    }
    _try_out(found, Producer)
    return found


def read_topics(topics: object) -> tuple[str, ...]:
    names = [topics] if isinstance(topics, str) else topics
    if not isinstance(names, list | tuple) or not names:
        raise ImproperlyConfigured("topics must be a topic, or a list of topics.")
    for name in names:
        if not isinstance(name, str) or not TOPIC.fullmatch(name):
            raise ImproperlyConfigured(
                f"topics has {name!r}; a topic has up to 249 letters, digits, periods, hyphens and underscores. "
                "Name each topic: patterns are not read."
            )
    return tuple(names)


def read_group_config(config: object, group: object) -> dict[str, Any]:
    """Return librdkafka's options for a member of a consumer group. No error shows a secret."""
    # librdkafka ends the process for an empty name, also for one that is empty in C: a NUL, or not UTF-8.
    if not isinstance(group, str) or not group or not group.isprintable():
        raise ImproperlyConfigured(f"group is {group!r}; it must be the name of the consumer group, such as 'billing'.")
    found = {
        **_CONSUMER_DEFAULTS,
        **_require_config(config, _REFUSED_BY_CONSUMER),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
        "auto.offset.reset": "earliest",
    }
    _try_out(found, lambda options: Consumer(options).close())
    return found


def servers(config: Mapping[str, Any]) -> str:
    return str(config["bootstrap.servers"])


def without_secrets(text: str, config: Mapping[str, Any]) -> str:
    """Return text of librdkafka in which no password of `config` occurs."""
    for name, value in config.items():
        if isinstance(value, str) and value and any(word in name for word in _SECRET):
            text = text.replace(value, "***")
    return text


def _require_config(config: object, refused: Collection[str]) -> dict[str, Any]:
    if not isinstance(config, Mapping) or not all(isinstance(name, str) for name in config):
        raise ImproperlyConfigured(f"config must be a dict of librdkafka's options, such as {EXAMPLE}.")
    for name, value in config.items():
        # librdkafka takes the options of topics with this prefix, too.
        if (option := name.removeprefix("topic.")) in refused:
            remedy = "remove it, because django_outbox sets it or delivery depends on it"
            if option in _INSTEAD:
                remedy = f"set {_INSTEAD[option]} instead"
            raise ImproperlyConfigured(f"config: {name} cannot be set; {remedy}.")
        if name != "oauth_cb" and not isinstance(value, str | numbers.Real):
            raise ImproperlyConfigured(f"config: {name} must be a string, a number, True or False.")
    servers = config.get("bootstrap.servers")
    if not isinstance(servers, str) or not servers.strip():
        raise ImproperlyConfigured(f"config: bootstrap.servers is missing; set config to a dict like {EXAMPLE}.")
    require_printable("config: bootstrap.servers", servers)
    return dict(config)


def _try_out(config: Mapping[str, Any], make_client: Callable[[dict[str, Any]], object]) -> None:
    """Validate the options with librdkafka, which does not connect without the brokers' addresses."""
    left_out = {"bootstrap.servers", "oauth_cb"}
    if str(config.get("sasl.mechanism", config.get("sasl.mechanisms"))).upper() == "OAUTHBEARER":
        # The trial would wait for a token.
        left_out |= {"security.protocol", "sasl.mechanism", "sasl.mechanisms"}
    try:
        make_client({name: value for name, value in config.items() if name not in left_out} | {"logger": Log()})
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise ImproperlyConfigured(f"config: {without_secrets(reason, config)}.") from None
