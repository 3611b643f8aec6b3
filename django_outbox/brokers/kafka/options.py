"""The options of the Kafka publisher and consumer that librdkafka reads: what is refused, and what is set."""

import numbers
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.kafka.logs import Log

EXAMPLE = '{"bootstrap.servers": "kafka-1:9092,kafka-2:9092"}'

REFUSED_CALLBACKS = dict.fromkeys(
    ("on_delivery", "dr_cb", "dr_msg_cb", "error_cb", "stats_cb", "throttle_cb", "log_cb", "logger", "on_commit"),
    "callbacks and loggers are set by this package; remove it",
)

REFUSED = {
    "enable.idempotence": "it keeps retries from changing the order; it is always true",
    "retries": "messages are sent again until the option timeout; remove it",
    "message.send.max.retries": "messages are sent again until the option timeout; remove it",
    "acks": "a message is accepted only if all in-sync replicas have it; it is always all",
    "request.required.acks": "a message is accepted only if all in-sync replicas have it; it is always all",
    "delivery.timeout.ms": "use the option timeout instead",
    "message.timeout.ms": "use the option timeout instead",
    "transactional.id": "the publisher uses no transactions; remove it",
    "transaction.timeout.ms": "the publisher uses no transactions; remove it",
    "default.topic.config": "set its options directly in config",
    "delivery.report.only.error": "each message needs a delivery report; remove it",
    **REFUSED_CALLBACKS,
}
"""Options of librdkafka that the publisher sets itself, and why."""

ALWAYS: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    # At the timeout the publisher ends the producer, so that no message is sent later.
    "message.timeout.ms": 0,
}

DEFAULTS: Mapping[str, Any] = {
    "client.id": "django_outbox",
    # Like Java's producer, so that a key is in the same partition as the records of other services.
    "partitioner": "murmur2_random",
    # Messages are handed over in batches, so they need not wait long for each other.
    "linger.ms": 1,
    # The default of the brokers' message.max.bytes.
    "message.max.bytes": 1_048_588,
    "socket.keepalive.enable": True,
    # Brokers close idle connections.
    "log.connection.close": False,
}
"""Options that `config` may replace."""

_SECRET = ("password", "secret", "pem", "sasl.oauthbearer.config", "sasl.jaas")


def read_config(config: object, timeout: float) -> dict[str, Any]:
    """Return the options for the producer.

    Args:
        config: the publisher's option.
        timeout: seconds after which the publisher gives up.

    Raises:
        ImproperlyConfigured: an option is missing, refused, unknown or invalid. The error never shows a secret.
    """
    given = require_config(config, REFUSED)
    if str(given.get("partitioner", "")) == "random":
        raise ImproperlyConfigured("config: partitioner is 'random', so messages of a key would not stay in order.")
    milliseconds = max(int(timeout * 1000), 10)
    found = {
        **DEFAULTS,
        # A request that gets no response is given up, and retried, before the publisher gives up.
        "socket.timeout.ms": max(milliseconds // 2, 10),
        "request.timeout.ms": max(milliseconds // 2, 10),
        "socket.connection.setup.timeout.ms": max(min(milliseconds // 2, 30_000), 1000),
        # How long a new topic may be unknown to some brokers.
        "topic.metadata.propagation.max.ms": min(milliseconds // 4, 5000),
        "reconnect.backoff.max.ms": 1000,
        **given,
        **ALWAYS,
    }
    _try_out(found)
    return found


def require_config(config: object, refused: Mapping[str, str]) -> dict[str, Any]:
    """Return the options in `config`, all of which librdkafka could read.

    Args:
        config: the value of the option `config`.
        refused: names of options that may not be in it, with the reason.

    Raises:
        ImproperlyConfigured: it is not a dict of names and values, has no bootstrap.servers, or has a refused option.
    """
    if not isinstance(config, Mapping) or not all(isinstance(name, str) for name in config):
        raise ImproperlyConfigured(f"config must be a dict of librdkafka's options, such as {EXAMPLE}.")
    for name, value in config.items():
        if name.startswith("topic."):
            # librdkafka takes them for the options of the same name without the prefix.
            raise ImproperlyConfigured(f"config: {name} cannot be set: write it without the prefix topic.")
        if name in refused:
            raise ImproperlyConfigured(f"config: {name} cannot be set: {refused[name]}.")
        if name != "oauth_cb" and not isinstance(value, str | numbers.Real):
            raise ImproperlyConfigured(f"config: {name} must be a string, a number, True or False.")
    servers = config.get("bootstrap.servers") or config.get("metadata.broker.list")
    if not isinstance(servers, str) or not servers.strip():
        raise ImproperlyConfigured(f"config: bootstrap.servers is missing; set config to a dict like {EXAMPLE}.")
    return dict(config)


def servers(config: Mapping[str, Any]) -> str:
    """Return the brokers' addresses."""
    return str(config.get("bootstrap.servers") or config.get("metadata.broker.list"))


def without_secrets(text: str, config: Mapping[str, Any]) -> str:
    """Return text of librdkafka in which no password of `config` occurs."""
    for name, value in config.items():
        if isinstance(value, str) and value and any(word in name for word in _SECRET):
            text = text.replace(value, "***")
    return text


def _try_out(config: Mapping[str, Any]) -> None:
    """Let librdkafka validate the options. Without the brokers' addresses it does not connect."""
    left_out = {"bootstrap.servers", "metadata.broker.list", "oauth_cb"}
    if str(config.get("sasl.mechanism", config.get("sasl.mechanisms", ""))).upper() == "OAUTHBEARER":
        # It would wait for a token.
        left_out |= {"security.protocol", "sasl.mechanism", "sasl.mechanisms"}
    try:
        Producer({name: value for name, value in config.items() if name not in left_out} | {"logger": Log()})
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise ImproperlyConfigured(f"config: {without_secrets(reason, config)}.") from None
