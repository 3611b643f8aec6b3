"""The options of the Kafka publisher, security, and the formats of records."""

import ssl
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cloudevents.v1.kafka import KafkaMessage, from_binary

from django_outbox.brokers.kafka import KafkaPublisher
from django_outbox.messages import ACCEPTED, Message, OutcomeKind
from tests.publishers.subjects.base import unique_name
from tests.support.claimed import make_message
from tests.support.kafka.mock import MockCluster, mock_cluster
from tests.support.kafka.tools import read_topic
from tests.support.proxies import Proxies

pytest_plugins = ["tests.support.tls_fixtures"]

SERVERS = {"bootstrap.servers": "127.0.0.1:9092"}


def test_a_destination_in_a_trace_has_the_prefix_and_the_topic_or_type():
    publisher = KafkaPublisher("default", config=SERVERS, topic="shop.{topic}")
    assert publisher.name_destination(make_message("orders")) == "shop.orders"
    assert publisher.name_destination(make_message("")) == "shop.order.created"


# Formats


def published(message: Message, **options: Any) -> Any:
    """Publish a message, and return the record."""
    cluster, topic = mock_cluster(), unique_name()
    cluster.create_topic(topic)
    publisher = KafkaPublisher("default", config={"bootstrap.servers": cluster.servers}, topic=topic, **options)
    assert publisher.publish([message]) == [ACCEPTED]
    publisher.close()
    (record,) = read_topic(cluster.servers, topic, {})
    return record


MESSAGE = make_message(
    "orders", b'{"id":  7}', key="order-7", headers={"traceparent": "00-1-2-01", "tenant": "acme", "ce_id": "forged"}
)


def test_headers_describe_a_message():
    record = published(MESSAGE)
    assert (record.key(), record.value()) == (b"order-7", b'{"id":  7}')
    assert dict(record.headers()) == {
        "outbox-message-id": MESSAGE.message_id.encode(),
        "outbox-type": b"order.created",
        "outbox-occurred-at": b"2026-01-02T03:04:05+00:00",
        "outbox-key": b"order-7",
        "content-type": b"application/json",
        "traceparent": b"00-1-2-01",
        "tenant": b"acme",
        "ce_id": b"forged",
    }


def test_a_message_is_a_cloudevent():
    record = published(MESSAGE, format="cloudevents", source="/shop")
    assert record.value() == b'{"id":  7}'
    event = from_binary(KafkaMessage(dict(record.headers()), record.key().decode(), record.value()))
    assert event.get_data() == {"id": 7}
    assert event.get_attributes() == {
        "specversion": "1.0",
        "id": MESSAGE.message_id,
        "source": "/shop",
        "type": "order.created",
        "time": "2026-01-02T03:04:05Z",
        "subject": "orders",
        "datacontenttype": "application/json",
        "partitionkey": "order-7",
        "traceparent": "00-1-2-01",
    }
    assert dict(record.headers())["tenant"] == b"acme"
    assert [name for name, _ in record.headers()].count("ce_id") == 1


# Security


def test_a_broker_is_used_only_if_its_certificate_is_trusted(certificates: dict[str, Path]):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates["broker.pem"], certificates["broker.key"])
    with closing(MockCluster(1)) as cluster, Proxies() as proxies:
        proxy = proxies.open(int(cluster.servers.rpartition(":")[2]), context)
        cluster.advertise(1, proxy.port)
        config = {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "security.protocol": "ssl"}
        trusting, other = (
            KafkaPublisher("default", config={**config, "ssl.ca.location": str(certificates[name])}, timeout=seconds)
            for name, seconds in (("broker.pem", 30.0), ("stranger.pem", 2.0))
        )
        assert trusting.publish([make_message(unique_name())]) == [ACCEPTED]
        reason = other.prepare()
        assert "certificate" in reason
        assert "check the ssl options in config" in reason
        trusting.close()
        other.close()


UNREACHABLE = {
    "no TLS": ({"security.protocol": "ssl"}, "check the ssl options in config"),
    "host": ({"bootstrap.servers": "no-such-host.invalid:9092"}, "check the host names of bootstrap.servers"),
    "no SASL": (
        {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "shop",
            "sasl.password": "s3cret",
        },
        "check security.protocol and the sasl options in config",
    ),
}


@pytest.mark.parametrize(("config", "text"), UNREACHABLE.values(), ids=UNREACHABLE)
def test_a_connection_that_fails_has_a_remedy(config, text):
    publisher = KafkaPublisher("default", config={"bootstrap.servers": mock_cluster().servers, **config}, timeout=10.0)
    reason = publisher.prepare()
    assert text in reason
    assert "s3cret" not in reason
    (outcome,) = publisher.publish([make_message("t")])
    assert outcome.kind is OutcomeKind.UNANSWERED
    publisher.close()
