"""Values at the limits of what `enqueue` accepts are stored unchanged on every database."""

import enum
import json
import uuid
from typing import Any

import pytest
from django.db import connections, transaction

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.db.fields import partition_of
from django_outbox.messages import MAX_HEADERS_DEPTH
from django_outbox.stores.dialect import Dialect
from tests.conftest import ALIASES, MYSQL_AND_MARIADB
from tests.support.json_values import nested


class Number(enum.IntEnum):
    SEVEN = 7


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_a_value_with_the_maximum_nesting_is_stored(using: str, kind: type):
    value = nested(31 if using in MYSQL_AND_MARIADB else 500, kind)
    with transaction.atomic(using=using):
        headers = {"a": nested(30 if using in MYSQL_AND_MARIADB else MAX_HEADERS_DEPTH - 1, kind)}
        message = enqueue("order.created", value, headers=headers, using=using)
    message.refresh_from_db()
    assert message.payload == json.loads(json.dumps(value))
    assert message.headers == json.loads(json.dumps(headers))


@pytest.mark.django_db(databases=ALIASES)
def test_the_longest_integer_is_stored(using: str):
    limits = Dialect(connections[using]).json_integers
    payload = 10**308 - 1 if limits is None else limits.stop - 1
    with transaction.atomic(using=using):
        message = enqueue("order.created", payload, using=using)
    message.refresh_from_db()
    assert message.payload == payload


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize(
    ("key", "text"),
    [(7, "7"), (0, "0"), (-1, "-1"), (10**254, f"1{'0' * 254}"), (uuid.UUID(int=5), f"{uuid.UUID(int=5)}"),
     (Number.SEVEN, "7")],
    ids=["7", "0", "negative", "long", "UUID", "enumeration"],
)  # fmt: skip
def test_a_key_may_be_an_integer_or_a_uuid(using: str, key: Any, text: str):
    many = OutboxMessage(type="order.created", payload=1, key=key)
    with transaction.atomic(using=using):
        message = enqueue("order.created", 1, key=key, lock_key=True, using=using)
        enqueue_many([many], lock_key=True, using=using)
    assert (message.key, many.key) == (text, text)
    for stored in OutboxMessage.objects.using(using):
        assert (stored.key, stored.partition) == (text, partition_of(text))


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize("name", ["x" * 255, "\N{PILE OF POO}" * 63, "\\u0000", 'it\'s "quoted" %s {} ;--\u202e\xa0'])
def test_any_string_of_up_to_255_bytes_is_a_valid_type_key_topic_and_header_name(using: str, name: str):
    with transaction.atomic(using=using):
        message = enqueue(name, 1, key=name, topic=name, headers={name: name}, using=using)
    message.refresh_from_db()
    assert (message.type, message.key, message.topic, message.headers) == (name, name, name, {name: name})
