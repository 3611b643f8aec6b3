"""The remedies for what RabbitMQ refuses."""

import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from django_outbox.brokers.rabbitmq.errors import blames_message, explain


@pytest.mark.parametrize(
    ("code", "reply", "remedy"),
    [
        (404, "NOT_FOUND - no queue 'billing' in vhost '/'", "declare the queue, or correct the option queue"),
        (404, "NOT_FOUND - no exchange 'shop' in vhost '/'", "declare it, or set declare_exchange"),
        (
            403,
            "ACCESS_REFUSED - read access to queue 'billing' in vhost '/' refused for user 'shop'",
            "give the user of the url permission to read the queue",
        ),
        (
            406,
            "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'shop' in vhost '/'",
            "it exists with other properties: change declare_exchange, or delete it",
        ),
        (
            406,
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms.",
            "the database took longer than the broker's consumer_timeout",
        ),
    ],
)
def test_a_channel_that_the_broker_closes_is_explained_with_one_remedy(code: int, reply: str, remedy: str):
    assert explain(ChannelClosedByBroker(code, reply)) == f"{code} {reply}: {remedy}"


def test_a_connection_that_the_broker_closes_has_no_remedy_of_a_channel():
    reply = "CONNECTION_FORCED - no queue"
    assert explain(ConnectionClosedByBroker(404, reply)) == f"404 {reply}"


@pytest.mark.parametrize(
    ("exchange", "refused", "blamed"),
    [("shop", "shop", False), ("", "amq.default", False), ("", "exchange of one task", True)],
)
def test_a_refused_exchange_is_the_fault_of_a_message_only_if_each_has_its_own(
    exchange: str, refused: str, blamed: bool
):
    reply = f"ACCESS_REFUSED - write access to exchange '{refused}' in vhost '/' refused for user 'shop'"
    assert blames_message(ChannelClosedByBroker(403, reply), exchange) is blamed
