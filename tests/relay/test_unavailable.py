"""A relay whose publisher sets messages aside, or is unavailable."""

import time

import pytest
from django.db import transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue_many
from django_outbox.exceptions import RelayUnavailable
from django_outbox.messages import ACCEPTED, set_aside, unanswered
from django_outbox.relay import Relay
from django_outbox.relay.limits import Limits
from django_outbox.tasks import drain_outbox
from tests.conftest import ALIASES
from tests.support.databases import read_only
from tests.support.messages import put
from tests.support.proxies import Proxy
from tests.support.publishers import PREPARING, SCRIPTED, Script
from tests.support.rabbitmq.tools import broker_url
from tests.support.relay_threads import QUICK, running_relay
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.rabbitmq.fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]


@pytest.fixture
def using() -> str:
    """What a publisher reports does not depend on the database."""
    return "postgresql"


def test_a_message_that_is_set_aside_uses_up_no_attempt_and_blocks_only_its_key(
    using: str, caplog: pytest.LogCaptureFixture, scripted: Script
):
    put(6, using, keys=2)
    scripted.answer = lambda message: (
        set_aside("full", 30.0, error_class="rabbitmq.nack") if message.key == "k0" else ACCEPTED
    )
    with Relay(using=using) as relay:
        relay.drain()
    messages = OutboxMessage.objects.using(using)
    assert sorted(messages.processed().values_list("payload", flat=True)) == [1, 3, 5]
    first, *others = messages.pending().order_by("id")
    assert (first.payload, first.attempts, first.error, first.error_class) == (0, 0, "full", "rabbitmq.nack")
    assert [(other.attempts, other.error) for other in others] == [(0, "")] * 2
    assert first.available_at is not None
    assert 20 < (first.available_at - first.last_error_at).total_seconds() <= 31  # type: ignore[operator]
    # The publisher reports it, once for a destination, and not the relay for each batch.
    assert "will be retried" not in caplog.text


@override_settings(OUTBOX={"PUBLISHERS": {"default": PREPARING}})
def test_nothing_is_claimed_for_a_publisher_that_cannot_connect(using: str, scripted: Script):
    """A claim is a database transaction, which would stay open while the publisher tries to connect."""
    scripted.unavailable = "cannot connect"
    put(3, using)
    with Relay(using=using, limits=QUICK) as relay:
        with pytest.raises(RelayUnavailable, match="cannot connect"):
            relay.deliver_once()
        with pytest.raises(RelayUnavailable, match="cannot connect"):
            relay.drain()
        assert scripted.batches == []
        assert relay.tally.claimed == 0
        scripted.unavailable = ""
        time.sleep(max(relay._state.breakers.seconds_until_trial("default"), 0) + 0.1)
        assert relay.drain().processed == 3


def test_a_drain_whose_time_ends_during_an_outage_raises_an_error(using: str, scripted: Script):
    put(1, using)
    scripted.answer = lambda message: unanswered("the broker is away")
    patient = Limits(drain_patience=1_000_000)
    with Relay(using=using, limits=patient) as relay, pytest.raises(RelayUnavailable, match="the broker is away"):
        relay.drain(max_seconds=0.5)


def test_a_drain_whose_time_ends_after_a_delivery_raises_no_error(using: str):
    put(1, using)
    with Relay(using=using) as relay:
        assert relay.drain(max_seconds=30).processed == 1
        assert relay.drain(max_seconds=0).processed == 1


def test_the_task_fails_if_the_broker_swallows_everything(proxy: Proxy):
    """Also a broker that has let the relay in, and then accepts everything without a reply."""
    options = {"url": broker_url(port=proxy.port), "timeout": 1.5, "connect_timeout": 1}
    rabbitmq = {"BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher", "OPTIONS": options}
    proxy.hold_back()
    with override_settings(OUTBOX={"PUBLISHERS": {"default": rabbitmq}}):
        put(5, "postgresql")
        with pytest.raises(RelayUnavailable, match="cannot connect to RabbitMQ"):
            drain_outbox(using="postgresql", max_seconds=5, workers=2)
    assert {*OutboxMessage.objects.using("postgresql").values_list("attempts", flat=True)} == {0}


def test_nothing_is_published_in_a_session_that_can_only_read(scripted: Script):
    """As on a standby, whose advisory locks are not those of the primary either."""
    put(3, "postgresql", keys=3)
    refused = pytest.raises(RelayUnavailable, match="read-only")
    with read_only(), Relay(using="postgresql", limits=QUICK) as relay, refused:
        relay.drain()
    assert scripted.batches == []


@override_settings(OUTBOX={"PUBLISHERS": {"default": PREPARING}})
def test_an_idle_relay_notices_that_an_outage_is_over(using: str, scripted: Script):
    scripted.unavailable = "cannot connect"
    with running_relay(using=using, poll_interval=0.05) as relay:
        eventually(lambda: [outage.reason for outage in relay.outages] == ["cannot connect"])
        scripted.unavailable = ""
        eventually(lambda: relay.outages == [])


def test_a_drain_of_two_publishers_settles_as_many_messages_as_it_may(using: str):
    with override_settings(OUTBOX={"PUBLISHERS": {"default": SCRIPTED, "b": SCRIPTED}}):
        put(1, using)
        with transaction.atomic(using=using):
            enqueue_many([OutboxMessage(type="t", payload=n, publisher="b") for n in range(5)], using=using)
        with Relay(using=using, max_messages=6) as relay:
            assert relay.drain().processed == 6
