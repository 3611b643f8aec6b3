"""Wrong options of publishers and consumers: each error names the option and the remedy, and shows no secret.

The options of Celery are tested with its publisher, and those of every consumer with the system checks.
"""

import base64
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers import Consumer, Publisher
from django_outbox.brokers.aws import SNSPublisher, SQSPublisher
from django_outbox.brokers.http import HTTPPublisher
from django_outbox.brokers.kafka import KafkaConsumer, KafkaPublisher
from django_outbox.brokers.nats import JetStreamConsumer, JetStreamPublisher
from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from django_outbox.brokers.redis import RedisStreamsConsumer, RedisStreamsPublisher

HTTP = "https://shop.example.com/s3cret"
NATS = "nats://outbox:s3cret@127.0.0.1:4222"
REDIS = "redis://shop:s3cret@localhost:6379/2"
QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
ARN = "arn:aws:sns:eu-central-1:123456789012:orders"
AMQP = "amqp://shop:s3cret@host"
SERVERS = {"bootstrap.servers": "127.0.0.1:9092", "sasl.password": "s3cret"}

http = partial(HTTPPublisher, "shop", url=HTTP)
kafka = partial(KafkaPublisher, "shop", config=SERVERS)
nats = partial(JetStreamPublisher, "shop", servers=NATS)
rabbitmq = partial(RabbitMQPublisher, "shop", url=AMQP)
redis = partial(RedisStreamsPublisher, "shop", url=REDIS)
sns = partial(SNSPublisher, "shop", topic_arn=ARN)
sqs = partial(SQSPublisher, "shop", queue_url=QUEUE)

kafka_consumer = partial(KafkaConsumer, "billing", config=SERVERS, group="billing", topics=["orders", "payments"])
nats_consumer = partial(JetStreamConsumer, "billing", servers=NATS, stream="ORDERS", durable="billing")
redis_consumer = partial(RedisStreamsConsumer, "billing", url=REDIS, stream="orders", group="billing")

Make = Callable[..., Publisher | Consumer]


def secret_of(length: int) -> str:
    return f"whsec_{base64.b64encode(b's' * length).decode()}"


SHARED: list[tuple[str, object, str]] = [
    ("timeout", 0, "timeout is 0; it must be a number of seconds above 0, at most a day"),
    ("concurrency", 0, "concurrency is 0; it must be a whole number from 1 to"),
    ("format", "xml", "format is 'xml'; it must be one of 'plain', 'cloudevents'"),
    ("format", "cloudevents", "source is ''; CloudEvents need one"),
    ("source", "/shop", "source is set, but format is 'plain'"),
    ("ssl", {"ca": "x"}, "ssl"),
]
"""Options that several of them have."""

EVERY: list[Make] = [http, kafka, nats, rabbitmq, redis, sns, sqs, kafka_consumer, nats_consumer, redis_consumer]

OWN: list[tuple[Make, dict[str, Any], str]] = [
    (http, {"url": ""}, 'url is missing, or not text; set it to a URL like "https://shop.example.com/hooks"'),
    (http, {"url": "ftp://shop.example.com/s3cret"}, "must begin with http:// or https://"),
    (http, {"url": "https://shop.example.com:0/s3cret"}, "a URL cannot be read"),
    (http, {"url": "https://shop.example.com/s3cret\r\nx: y"}, "url contains a line break"),
    (http, {"url": "https://shop.exa mple.com/s3cret"}, "url has a space"),
    (http, {"url": "https://user:s3cret@shop.example.com/"}, "url contains a user or a password"),
    (http, {"url": "https://größe.example.com/s3cret"}, "write the host as in DNS"),
    (http, {"url": "https://shop.example.com/s3cret/{type}"}, "url has a space, a brace"),
    (http, {"url": "http://shop.example.com", "ssl": {}}, "ssl is set, but url is without TLS"),
    (http, {"secrets": 5}, "secrets must be a string like 'whsec_...', or a list of such strings"),
    (http, {"secrets": "s3cret"}, "secret 1 in secrets cannot be read"),
    (http, {"secrets": [secret_of(24), "whsec_s3cret!"]}, "secret 2 in secrets cannot be read"),
    (http, {"secrets": secret_of(23)}, "24 to 64 random bytes in base64"),
    (http, {"headers": ["a"]}, "headers must be a dict of strings"),
    (http, {"headers": {"a b": "s3cret"}}, "'a b' is not a valid name of an HTTP header"),
    (http, {"headers": {"x": "s3cret\r\n"}}, "the value of 'x' (it is not shown) must be printable ASCII"),
    (http, {"headers": {"x": " s3cret"}}, "without spaces at its ends"),
    (http, {"headers": {"Content-Type": "text/plain"}}, "headers must not set Content-Type"),
    (http, {"headers": {"transfer-encoding": "chunked"}}, "headers must not set transfer-encoding"),
    (http, {"allow_private_addresses": "yes"}, "allow_private_addresses is 'yes'"),
    (kafka, {"config": None}, "config must be a dict"),
    (kafka, {"config": {}}, "bootstrap.servers is missing"),
    (kafka, {"config": {**SERVERS, "acks": 1}}, "config: acks cannot be set; remove it, because django_outbox"),
    (
        kafka,
        {"config": {**SERVERS, "delivery.timeout.ms": 1}},
        "delivery.timeout.ms cannot be set; set the option timeout",
    ),
    (kafka, {"config": {**SERVERS, "metadata.broker.list": "a"}}, "cannot be set; set bootstrap.servers"),
    (kafka, {"config": {**SERVERS, "partitioner": "random"}}, "messages of a key would not stay in order"),
    (kafka, {"config": {**SERVERS, "topic.partitioner": "random"}}, "partitioner is 'random'"),
    (kafka, {"config": {**SERVERS, "topic.acks": 1}}, "topic.acks cannot be set"),
    (kafka, {"config": {**SERVERS, "compression.type": None}}, "compression.type must be a string, a number"),
    (kafka, {"config": {**SERVERS, "no.such.option": 1}}, 'No such configuration property: "no.such.option"'),
    (
        kafka,
        {"config": {**SERVERS, "security.protocol": "ssl", "ssl.key.pem": "s3cret", "ssl.key.password": "s3cret"}},
        "config: ",
    ),
    (kafka_consumer, {"config": {}}, "bootstrap.servers is missing"),
    (kafka_consumer, {"config": {**SERVERS, "auto.offset.reset": "latest"}}, "auto.offset.reset cannot be set"),
    (kafka_consumer, {"config": {**SERVERS, "group.id": "a"}}, "group.id cannot be set; set the option group"),
    (kafka_consumer, {"config": {**SERVERS, "on_commit": print}}, "on_commit cannot be set"),
    (kafka_consumer, {"config": {**SERVERS, "no.such.option": 1}}, "No such configuration property"),
    (
        kafka_consumer,
        {"config": {**SERVERS, "security.protocol": "sasl_ssl", "sasl.mechanism": "PLAI"}},
        "Unsupported SASL mechanism: PLAI",
    ),
    (kafka_consumer, {"group": ""}, "group is ''"),
    (kafka_consumer, {"group": "\0"}, "group is '\\x00'"),
    (kafka_consumer, {"group": "caf\udce9"}, "group is 'caf\\udce9'"),
    (kafka_consumer, {"topics": []}, "topics must be a topic, or a list of topics"),
    (kafka_consumer, {"topics": ["order created"]}, "topics has 'order created'"),
    (kafka_consumer, {"topics": "^orders"}, "topics has '^orders'"),
    (nats, {"servers": ()}, "servers is missing, or not text; set it to a URL like"),
    (nats, {"servers": "http://outbox:s3cret@host"}, "servers: a URL must begin with nats:// or tls://"),
    (nats, {"subject": "shop.{id}"}, "subject is 'shop.{id}'; its placeholders must be"),
    (nats, {"subject": "shop.*.{topic}"}, "subject is 'shop.*.{topic}'; a subject has up to 2,048 bytes"),
    (nats, {"inbox_prefix": "a."}, "inbox_prefix is 'a.'; it must be a subject"),
    (nats, {"servers": "nats://host", "credentials": "/none"}, "credentials: '/none' cannot be read"),
    (nats, {"ssl": {}}, "every URL in servers must begin with tls://"),
    (nats_consumer, {"stream": ""}, "stream is ''; it must be a name without"),
    (nats_consumer, {"durable": "a.b"}, "durable is 'a.b'; it must be a name without"),
    (rabbitmq, {"url": ()}, 'set it to a URL like "amqp://user:password@host:5672/vhost"'),
    (rabbitmq, {"url": ["amqp://a", 5]}, "url is missing, or not text"),
    (rabbitmq, {"url": "http://guest:s3cret@host"}, "url: a URL must begin with amqp:// or amqps://"),
    (rabbitmq, {"url": "amqp://"}, "url: a URL cannot be read"),
    (rabbitmq, {"url": f"{AMQP}\n"}, "url contains a line break"),
    (rabbitmq, {"exchange": "shop\n"}, "exchange contains a line break"),
    (rabbitmq, {"url": "amqp://user@host"}, "url: a URL cannot be read"),
    (rabbitmq, {"url": "amqp://user:s3/cret@host"}, "percent-encoded"),
    (rabbitmq, {"url": f"{AMQP}?heartbeat=x"}, "url has a query that cannot be read: Invalid heartbeat"),
    (rabbitmq, {"url": f"{AMQP}?ssl_options={{}}"}, "url must not set ssl_options, only heartbeat, "),
    (rabbitmq, {"exchange": 5}, "exchange is 5; it must be a string of at most 255 bytes"),
    (rabbitmq, {"exchange": "é" * 128}, "it must be a string of at most 255 bytes"),
    (rabbitmq, {"exchange": "e\udcff"}, "exchange is 'e\\udcff'; it must be a string of at most 255 bytes in UTF-8"),
    (rabbitmq, {"exchange": "e", "declare_exchange": "queue"}, "it must be one of None, 'direct', 'topic'"),
    (rabbitmq, {"declare_exchange": "topic"}, "exchange is blank; name the exchange to declare"),
    (rabbitmq, {"mandatory": 1}, "mandatory is 1; it must be True or False"),
    (rabbitmq, {"ssl": {"cafile": "no-such-file.pem"}}, "ssl: cafile 'no-such-file.pem' cannot be loaded"),
    (rabbitmq, {"ssl": {"verify": False}}, "ssl must be a dict with any of the keys cafile, certfile, keyfile"),
    (rabbitmq, {"ssl": {"keyfile": "key.pem"}}, "ssl has keyfile but no certfile"),
    (rabbitmq, {"ssl": {}, "url": ["amqps://a", "amqp://b"]}, "ssl is set, but a url is without TLS"),
    (redis, {"url": "http://shop:s3cret@localhost"}, "redis:// or rediss://"),
    (redis, {"url": "redis://:s3cret@/0"}, "url: a URL cannot be read"),
    (redis, {"url": f"{REDIS}?protocol=3"}, "url has parameters"),
    (redis, {"url": [REDIS, REDIS]}, "url is missing, or not text"),
    (redis, {"deduplicate": "no"}, "deduplicate is 'no'; it must be True or False"),
    (redis, {"sentinels": "redis://localhost"}, "without a port"),
    (redis, {"url": "redis://m", "sentinels": ["redis://a", "rediss://b"]}, "differ only in host and port"),
    (redis, {"max_length": 0}, "max_length is 0"),
    (redis, {"ssl": {}}, "must begin with rediss://"),
    (redis_consumer, {"stream": ""}, "stream is missing"),
    (redis_consumer, {"group": None}, "group is missing"),
    (redis_consumer, {"consumer": 7}, "consumer is 7"),
    (redis_consumer, {"claim_idle": 0}, "claim_idle is 0"),
    (sns, {"topic_arn": None}, "topic_arn is None"),
    (sns, {"topic_arn": QUEUE}, "it must be an ARN such as"),
    (sqs, {"queue_url": ""}, "queue_url is ''"),
    (sqs, {"queue_url": "orders"}, "it must be a URL such as"),
    (sqs, {"queue_url": f"{QUEUE}-{{id}}"}, "its placeholders must be"),
    (sqs, {"endpoint_url": "localhost:4566"}, "endpoint_url: a URL must begin with http:// or https://"),
    (sqs, {"endpoint_url": "http://user:s3cret@localhost"}, "endpoint_url contains a user or a password"),
    (sqs, {"session": "shop"}, "session must be a dict"),
    (sqs, {"session": {"region_name": "x"}}, "the region is the option region"),
    (sqs, {"session": {"aws_secret_access_key": "s3cret", "x": "y"}}, "session must be a dict"),
    (sqs, {"max_message_bytes": 1024 * 1024 + 1}, "from 1,024 to 1,048,576"),
]

WRONG = OWN + [
    (make, {option: value}, text)
    for make in EVERY
    for option, value, text in SHARED
    if option in inspect.signature(make).parameters
]


@pytest.mark.parametrize(("make", "options", "text"), WRONG, ids=[each[2] for each in WRONG])
def test_a_wrong_option_is_named_with_the_remedy_and_no_secret(make: Make, options: dict[str, Any], text: str):
    with pytest.raises(ImproperlyConfigured) as raised:
        make(**options)
    assert text in str(raised.value)
    assert "s3cret" not in str(raised.value)
    assert "whsec_c3" not in str(raised.value)
    # Nor does the traceback.
    assert raised.value.__context__ is None or raised.value.__suppress_context__


def test_a_file_that_has_no_credentials_is_not_shown(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("s3cret")
    with pytest.raises(ImproperlyConfigured, match=r"is not a \.creds file") as caught:
        nats(servers="nats://host", credentials=str(path))
    assert "s3cret" not in str(caught.value)


DESCRIBED: list[tuple[Callable[..., Publisher], dict[str, Any], str]] = [
    (http, {"url": "https://shop.example.com/hooks?token=s3cret"}, "HTTP POST to https://shop.example.com"),
    (http, {"url": "https://shop.example.com:443"}, "HTTP POST to https://shop.example.com"),
    (http, {"url": "http://shop.example.com:8080/hooks"}, "HTTP POST to http://shop.example.com:8080"),
    (http, {"url": "http://[2001:DB8::1]:8080/"}, "HTTP POST to http://[2001:db8::1]:8080"),
    (
        kafka,
        {"topic": "shop.{topic}"},
        "Kafka at 127.0.0.1:9092, topic 'shop.{topic}'",
    ),
    (
        nats,
        {"servers": [NATS, "tls://token@[::1]"]},
        "NATS JetStream at nats://127.0.0.1:4222, tls://[::1]:4222, subject '{topic}'",
    ),
    (redis, {}, "Redis at redis://localhost:6379 database 2, stream '{topic}'"),
    (
        redis,
        {"url": "redis://:s3cret@mymaster", "sentinels": ["redis://:s3cret@a", "redis://:s3cret@b:1"]},
        "Redis at master 'mymaster' of the Sentinels at a:26379, b:1, stream '{topic}'",
    ),
    (sns, {}, f"Amazon SNS at eu-central-1, '{ARN}'"),
    (sqs, {"region": "eu-central-1"}, f"Amazon SQS at eu-central-1, '{QUEUE}'"),
]


@pytest.mark.parametrize(("make", "options", "text"), DESCRIBED, ids=[each[2] for each in DESCRIBED])
def test_a_publisher_states_where_it_publishes_to_without_secrets(
    make: Callable[..., Publisher], options: dict[str, Any], text: str
):
    assert make(**options).describe() == text


@pytest.mark.parametrize(
    ("make", "source"),
    [
        (kafka_consumer, "topics 'orders, payments' as group 'billing' at 127.0.0.1:9092"),
        (nats_consumer, "stream 'ORDERS', consumer 'billing' at 127.0.0.1:4222"),
        (redis_consumer, "stream 'orders' at redis://localhost:6379 database 2, group 'billing'"),
    ],
    ids=["kafka", "nats", "redis"],
)
def test_a_consumer_states_what_it_reads_without_a_password(make: Callable[..., Consumer], source: str):
    assert make().source == source
