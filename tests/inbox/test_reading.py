"""Messages of a RabbitMQ queue reach the table: in order, once, and acknowledged after the commit."""

import pytest
from django.db.models import TextField
from django.db.models.functions import Cast

from django_outbox.models import OutboxMessage
from tests.conftest import ALIASES
from tests.inbox.conftest import read_all, stored
from tests.support.claimed import make_message

pytest_plugins = ["tests.support.rabbitmq.fixtures"]
pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)


def test_numbers_keep_their_digits(using, source, make_inbox):
    if using == "mysql":
        pytest.skip("MySQL stores JSON numbers as doubles")
    source.send(raw=b'{"amount": 123456789012345678.91, "rate": 1.10}')
    read_all(make_inbox(using), source)
    rows = OutboxMessage.objects.using(using).annotate(text=Cast("payload", TextField()))
    (text,) = rows.values_list("text", flat=True)
    assert "123456789012345678.91" in text
    assert "1.10" in text


def test_another_message_with_a_known_id_is_left_out_and_reported(using, source, make_inbox, caplog):
    source.send({"id": 7}, type="order.created", message_id="order-7")
    source.send({"id": 7}, type="order.created", message_id="order-7")
    tally = read_all(make_inbox(using), source)
    assert (tally.stored, tally.known) == (1, 1)
    assert "left out" not in caplog.text
    source.send({"id": 7}, type="order.paid", message_id="order-7")
    source.send({"id": 7, "total": 9}, type="order.created", message_id="order-7")
    tally = read_all(make_inbox(using), source)
    assert (tally.stored, tally.known) == (0, 2)
    (message,) = stored(using)
    assert f"another message with the same ID is stored; the first has the ID {message.message_id}" in caplog.text


def test_what_the_rabbitmq_publisher_sends_arrives_unchanged(source, make_inbox, make_publisher):
    headers = {"float": 2.5, "large": 2**40, "text": "é", "list": [1, {"a": None}], "correlation_id": "c-1"}
    message = make_message(source.name, b'{"total": "9.50"}', key="order-7", headers=headers)
    make_publisher(exchange="").publish([message])
    source.sent = 1
    read_all(make_inbox(), source)
    (found,) = stored("default")
    assert str(found.message_id) == message.message_id
    assert (found.type, found.topic, found.key) == ("order.created", source.name, "order-7")
    assert (found.payload, found.headers) == ({"total": "9.50"}, headers)
    assert found.occurred_at == message.occurred_at
