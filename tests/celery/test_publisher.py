"""CeleryPublisher on RabbitMQ and Redis: the messages, the outcomes, outages and the queues."""

import json
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest
import redis
from celery import Celery, Task
from django.conf import settings
from django.utils import timezone
from kombu import Exchange, Queue

from django_outbox.brokers.celery import CeleryPublisher
from django_outbox.messages import ACCEPTED, Message, OutcomeKind
from django_outbox.models import OutboxMessage
from django_outbox.relay import Relay
from tests.support.celery.tools import BROKERS, PATH, MakeApp
from tests.support.claimed import make_message
from tests.support.ports import free_port
from tests.support.proxies import Proxy
from tests.support.publishers import closing_all
from tests.support.rabbitmq.tools import broker_url

pytest_plugins = ["tests.support.celery.app_fixtures", "tests.support.tls_fixtures"]
pytestmark = pytest.mark.django_db(databases=["default"], transaction=True)


@pytest.fixture(params=[*BROKERS])
def broker(request: pytest.FixtureRequest) -> str:
    return BROKERS[str(request.param)]


def drain() -> Any:
    with Relay(publishers=["celery"]) as relay:
        return relay.drain()


def take(app: Celery, queue: str) -> list[Any]:
    """Take the messages out of a queue, as a worker reads them."""
    found = []
    with app.connection_for_read() as connection, connection.channel() as channel:
        bound = app.amqp.queues[queue](channel)
        while (message := bound.get(no_ack=True)) is not None:
            found.append(message)
    return found


def messages(app: Celery, count: int = 1, **options: Any) -> list[Message]:
    """Store calls, and return them as the relay claims them."""
    for n in range(count):
        app.tasks["tests.add"].apply_async((n, n), **options)
    rows = OutboxMessage.objects.order_by("-id")[:count]
    return [
        make_message(
            row.topic,
            json.dumps(row.payload).encode(),
            id=row.pk,
            message_id=str(row.message_id),
            type=row.type,
            headers=row.headers,
        )
        for row in reversed(rows)
    ]


@pytest.fixture
def publisher(request: pytest.FixtureRequest) -> Iterator[Callable[..., CeleryPublisher]]:
    with closing_all(partial(CeleryPublisher, "celery", app=PATH, timeout=5)) as make:
        yield make


# The messages


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "priority": {"priority": 7},
    "headers": {"headers": {"custom": {"nested": [1, None, True, 0.5]}}},
    "transient": {"delivery_mode": "transient"},
    "compressed": {"compression": "gzip"},
    "pickled": {"serializer": "pickle"},
    "reply_to": {"reply_to": "somewhere", "shadow": "shown", "time_limit": 10, "soft_time_limit": 5},
    "properties": {"app_id": "shop", "type": "task"},
    "routing key": {"exchange": "", "routing_key": ""},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_message_is_what_celery_itself_would_send(make: MakeApp, broker: str, prefix: str, options: dict[str, Any]):
    app = make(broker)
    args = ({"zebra": 1, "a": [timezone.now()]}, "– ß")
    kwargs = {"task_id": "7d0f7d5c-9d2a-4a0e-8a52-4c6e3bb8f1a0", "kwargs": {"b": 1, "a": 2}, **options}
    echo = app.tasks["tests.echo"]
    Task.apply_async(echo, args, **kwargs)
    echo.apply_async(args, **kwargs)
    assert drain().processed == 1
    direct, through_outbox = take(app, prefix)
    assert through_outbox.properties.pop("message_id") == kwargs["task_id"]
    for each in (direct, through_outbox):
        each.properties.pop("delivery_tag", None)
        each.properties.pop("application_headers", None)
        each.delivery_info.pop("delivery_tag", None)
        each.delivery_info.pop("message_count", None)
    for name in ("headers", "properties", "body", "content_type", "content_encoding", "delivery_info"):
        assert getattr(through_outbox, name) == getattr(direct, name), name


def test_a_blank_property_is_not_sent(make: MakeApp, prefix: str, publisher: Callable[..., CeleryPublisher]):
    """A row that was not written by a call may have one. RabbitMQ refuses a `user_id` that is not the connection's."""
    app = make(settings.AMQP_URL)
    (message,) = messages(app)
    blank = {"user_id": "", "reply_to": None, "expiration": "", "delivery_mode": None, "priority": None}
    payload = {**json.loads(message.payload), "properties": {**blank, "app_id": "shop", "cluster_id": "x"}}
    assert publisher().publish([message._replace(payload=json.dumps(payload).encode())]) == [ACCEPTED]
    (found,) = take(app, prefix)
    sent = {name: value for name, value in found.properties.items() if name in (*blank, "app_id", "cluster_id")}
    assert sent == {"app_id": "shop", "delivery_mode": 2, "priority": 0}


def test_a_message_expires_in_the_broker_on_demand_only(make: MakeApp, prefix: str):
    """A worker receives a task that has expired, and records that it was revoked."""
    app = make(settings.AMQP_URL)
    app.tasks["tests.add"].apply_async((1, 2), expires=600)
    lives_for_a_minute: dict[str, Any] = {"expiration": 60}
    app.tasks["tests.add"].apply_async((1, 2), **lives_for_a_minute)
    assert drain().processed == 2
    assert [each.properties.get("expiration") for each in take(app, prefix)] == [None, "60000"]


def test_a_topic_exchange_of_the_app_is_declared_and_used(make: MakeApp, prefix: str):
    name = f"{prefix}-topic"
    queue = Queue(name, Exchange(name, "topic"), routing_key="orders.#")
    app = make(settings.AMQP_URL, task_queues=[queue, Queue(prefix)])
    app.tasks["tests.add"].apply_async((1, 2), queue=name, routing_key="orders.new")
    assert drain().processed == 1
    (found,) = take(app, name)
    assert (found.delivery_info["exchange"], found.delivery_info["routing_key"]) == (name, "orders.new")


def test_an_eta_does_not_use_the_delayed_delivery_of_quorum_queues(make: MakeApp, prefix: str):
    name = f"{prefix}-topic"
    queue = Queue(name, Exchange(name, "topic"), routing_key="#", queue_arguments={"x-queue-type": "quorum"})
    app = make(settings.AMQP_URL, task_queues=[queue, Queue(prefix)])
    app.tasks["tests.add"].apply_async((1, 2), queue=name, countdown=60)
    assert OutboxMessage.objects.get().topic == "#"


# The queues


def test_a_queue_that_was_deleted_meanwhile_is_declared_again(
    make: MakeApp, prefix: str, publisher: Callable[..., CeleryPublisher]
):
    app, sender = make(settings.AMQP_URL), publisher()
    assert sender.publish(messages(app)) == [ACCEPTED]
    with pika.BlockingConnection(pika.URLParameters(settings.AMQP_URL)) as connection:
        connection.channel().queue_delete(prefix)
    assert sender.publish(messages(app, 2)) == [ACCEPTED] * 2
    assert len(take(app, prefix)) == 2


def test_a_queue_with_other_arguments_is_used_as_it_is(
    make: MakeApp, prefix: str, publisher: Callable[..., CeleryPublisher], caplog: pytest.LogCaptureFixture
):
    app = make(settings.AMQP_URL)
    with pika.BlockingConnection(pika.URLParameters(settings.AMQP_URL)) as connection:
        connection.channel().queue_declare(prefix, durable=True, arguments={"x-max-priority": 5})
    assert publisher().publish(messages(app)) == [ACCEPTED]
    assert f"cannot declare the queue '{prefix}'" in caplog.text


def test_a_missing_exchange_rejects_its_messages_and_no_others(
    make: MakeApp, prefix: str, publisher: Callable[..., CeleryPublisher]
):
    app = make(settings.AMQP_URL)
    lost = messages(app, exchange=f"{prefix}-missing", routing_key="x")
    found = publisher().publish([*messages(app), *lost, *messages(app)])
    assert [outcome.kind for outcome in found] == [OutcomeKind.ACCEPTED, OutcomeKind.REJECTED, OutcomeKind.ACCEPTED]
    assert (found[1].error_class, found[1].error.startswith("unroutable: there is no exchange")) == (
        "rabbitmq.unroutable",
        True,
    )
    assert len(take(app, prefix)) == 2


# Outcomes


def test_a_message_that_is_no_task_is_rejected_alone(
    make: MakeApp, broker: str, publisher: Callable[..., CeleryPublisher]
):
    app = make(broker)
    good = messages(app, 2)
    others = [
        make_message("queue", b'{"id": 7}'),
        make_message("queue", b"[]", headers={"task": "a", "id": "b"}),
        make_message("queue", b'{"body": "x", "base64": true, "properties": {}}', headers={"task": "a", "id": "b"}),
    ]
    found = publisher().publish([good[0], *others, good[1]])
    accepted, rejected = OutcomeKind.ACCEPTED, OutcomeKind.REJECTED
    assert [outcome.kind for outcome in found] == [accepted, *[rejected] * 3, accepted]
    assert {outcome.error_class for outcome in found[1:4]} == {"celery.not_a_task"}
    assert publisher().publish(others)[0].kind is OutcomeKind.REJECTED


def test_many_messages_are_accepted_in_order(
    make: MakeApp, broker: str, prefix: str, publisher: Callable[..., CeleryPublisher]
):
    app = make(broker)
    (message,) = messages(app)
    batch = [message._replace(id=n, headers={**message.headers, "number": n}) for n in range(1200)]
    assert list(publisher(timeout=60).publish(batch)) == [ACCEPTED] * 1200
    assert [each.headers["number"] for each in take(app, prefix)] == [*range(1200)]


@pytest.mark.parametrize("scheme", ["amqp", "redis"])
def test_nothing_is_lost_while_the_broker_is_unavailable(
    make: MakeApp, prefix: str, publisher: Callable[..., CeleryPublisher], scheme: str
):
    app = make(f"{scheme}://:secret@127.0.0.1:{free_port()}/1")
    batch = messages(app, 3)
    sender = publisher(timeout=1)
    assert "127.0.0.1" in sender.prepare()
    outcomes = sender.publish(batch)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.UNANSWERED] * 3
    texts = [sender.prepare(), sender.describe(), *(outcome.error for outcome in outcomes)]
    assert not any("secret" in text for text in texts)
    make(BROKERS["rabbitmq" if scheme == "amqp" else "redis"])
    assert drain().processed == 3


def test_the_next_node_of_a_failover_list_is_used(
    make: MakeApp, broker: str, prefix: str, publisher: Callable[..., CeleryPublisher]
):
    scheme = urlsplit(broker).scheme
    app = make(f"{scheme}://127.0.0.1:{free_port()}//;{broker}")
    assert publisher().publish(messages(app, 2)) == [ACCEPTED] * 2
    assert len(take(make(broker), prefix)) == 2


def test_a_connection_that_redis_ends_is_replaced(
    make: MakeApp, prefix: str, publisher: Callable[..., CeleryPublisher]
):
    app, sender = make(settings.REDIS_URL), publisher()
    app.conf.broker_transport_options = {"global_keyprefix": prefix, "client_name": prefix}
    assert sender.publish(messages(app)) == [ACCEPTED]
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        for each in client.client_list():
            if each["name"] == prefix:
                client.client_kill_filter(_id=each["id"])
    found = {sender.publish(messages(app))[0].kind for _ in range(3)}
    assert OutcomeKind.ACCEPTED in found
    assert found <= {OutcomeKind.ACCEPTED, OutcomeKind.UNANSWERED}


def test_redis_that_refuses_one_queue_accepts_the_others(
    make: MakeApp, prefix: str, publisher: Callable[..., CeleryPublisher]
):
    app = make(settings.REDIS_URL)
    refused = messages(app, queue=f"{prefix}-gone")
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.set(f"{prefix}{prefix}-gone", "not a list")
    found = publisher().publish([*messages(app), *refused, *messages(app)])
    assert [outcome.kind for outcome in found] == [OutcomeKind.ACCEPTED, OutcomeKind.DEFERRED, OutcomeKind.ACCEPTED]
    assert "WRONGTYPE" in found[1].error


# TLS


def test_a_task_is_sent_over_tls_to_a_broker_whose_certificate_is_trusted(
    make: MakeApp, prefix: str, tls_proxy: Proxy, certificates: dict[str, Path]
):
    trusted = {"ca_certs": str(certificates["broker.pem"]), "cert_reqs": ssl.CERT_REQUIRED}
    app = make(broker_url(scheme="amqps", port=tls_proxy.port), broker_use_ssl=trusted)
    app.tasks["tests.add"].delay(1, 2)
    assert drain().processed == 1
    assert [message.headers["task"] for message in take(make(settings.AMQP_URL), prefix)] == ["tests.add"]
