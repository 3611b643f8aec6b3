"""Wrong options of consumers: each error names the option and the remedy, and shows no secret.

The options that all consumers have, and those of RabbitMQ's, are in `test_checks`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers import Consumer
from django_outbox.brokers.kafka import KafkaConsumer
from django_outbox.brokers.nats import JetStreamConsumer
from django_outbox.brokers.redis import RedisStreamsConsumer

Make = Callable[..., Consumer]

CONFIG = {"bootstrap.servers": "127.0.0.1:9092", "sasl.password": "s3cret"}

kafka = partial(KafkaConsumer, "billing", config=CONFIG, group="billing", topics=["orders", "payments"])
nats = partial(JetStreamConsumer, "billing", servers="nats://outbox:s3cret@host", stream="ORDERS", durable="billing")
redis = partial(RedisStreamsConsumer, "billing", url="redis://:s3cret@localhost", stream="orders", group="billing")

WRONG: list[tuple[Make, dict[str, Any], str]] = [
    (kafka, {"config": {}}, "bootstrap.servers is missing"),
    (kafka, {"config": {**CONFIG, "enable.auto.commit": True}}, "offsets are committed after the database's commit"),
    (kafka, {"config": {**CONFIG, "group.id": "a"}}, "use the option group instead"),
    (kafka, {"config": {**CONFIG, "auto.offset.reset": "latest"}}, "kafka-consumer-groups.sh --reset-offsets"),
    (kafka, {"config": {**CONFIG, "on_commit": print}}, "on_commit cannot be set"),
    (kafka, {"config": {**CONFIG, "no.such.option": 1}}, 'No such configuration property: "no.such.option"'),
    (kafka, {"group": ""}, "group is ''"),
    (kafka, {"group": "\0"}, "group is '\\x00'"),
    (kafka, {"group": "caf\udce9"}, "group is 'caf\\udce9'"),
    (kafka, {"topics": []}, "topics must be a topic, or a list of topics"),
    (kafka, {"topics": ["order created"]}, "topics has 'order created'"),
    (kafka, {"topics": "^orders"}, "topics has '^orders'"),
    (kafka, {"timeout": 0}, "timeout is 0"),
    (nats, {"stream": ""}, "stream is ''; it must be a name without"),
    (nats, {"durable": "a.b"}, "durable is 'a.b'; it must be a name without"),
    (nats, {"servers": "http://s3cret@host"}, "a URL must begin with nats:// or tls://"),
    (redis, {"stream": ""}, "stream is missing"),
    (redis, {"group": None}, "group is missing"),
    (redis, {"consumer": 7}, "consumer is 7"),
    (redis, {"claim_idle": 0}, "claim_idle is 0"),
    (redis, {"url": "http://:s3cret@localhost"}, "redis:// or rediss://"),
]


@pytest.mark.parametrize(("make", "options", "text"), WRONG, ids=[each[2] for each in WRONG])
def test_a_wrong_option_is_named_with_the_remedy_and_no_secret(make: Make, options: dict[str, Any], text: str):
    with pytest.raises(ImproperlyConfigured) as raised:
        make(**options)
    assert text in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "source"),
    [
        (kafka, "topics 'orders, payments' as group 'billing' at 127.0.0.1:9092"),
        (nats, "stream 'ORDERS', consumer 'billing' at host:4222"),
        (redis, "stream 'orders' at redis://localhost:6379, group 'billing'"),
    ],
    ids=["kafka", "nats", "redis"],
)
def test_a_consumer_states_what_it_reads_without_a_password(make: Make, source: str):
    assert make().source == source
