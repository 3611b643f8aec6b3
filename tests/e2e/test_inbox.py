"""Shop, RabbitMQ, billing: each order has one invoice, although relays, inbox and connections are killed."""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue_many
from django_outbox.inbox.models import HandledMessage
from tests.conftest import ALIASES
from tests.support.invoices import TABLE
from tests.support.rabbitmq_tools import Broker, TcpProxy, broker_url
from tests.support.scripts import StartProcess
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.script_fixtures", "tests.support.rabbitmq_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True, databases=ALIASES)]

ORDERS = 2000
BATCH = 50

PROCESS = """
import json, sys
from tests import settings
alias, name, outbox, *arguments = sys.argv[1:]
settings.DATABASES[alias]["NAME"] = name
settings.OUTBOX = json.loads(outbox)

import django
django.setup()
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", *arguments, "--database", alias])
"""


@pytest.fixture
def invoices(request: pytest.FixtureRequest) -> Iterator[str]:
    """Create the table of the invoices, and return the alias of its database."""
    using: str = request.param
    with connections[using].cursor() as cursor:
        cursor.execute(f"CREATE TABLE {TABLE} (message_id varchar(36))")
    yield using
    with connections[using].cursor() as cursor:
        cursor.execute(f"DROP TABLE {TABLE}")


def count(using: str) -> "Counter[str]":
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT message_id FROM {TABLE}")
        return Counter(id for (id,) in cursor.fetchall())


@pytest.mark.parametrize("invoices", ["postgresql", "mariadb"], indirect=True)
def test_each_order_has_one_invoice_whatever_is_killed(
    invoices: str, broker: Broker, proxy: TcpProxy, start: StartProcess
):
    queue = broker.queue("quorum")
    outbox = outbox_of(invoices, queue, broker_url(port=proxy.port))
    commands = {
        "shop": ["run_outbox", "--publisher", "default", "--batch-size", str(BATCH)],
        "inbox": ["run_inbox"],
        "billing": ["run_outbox", "--publisher", "billing", "--batch-size", str(BATCH)],
    }
    name = str(connections[invoices].settings_dict["NAME"])

    def run(part: str) -> "subprocess.Popen[bytes]":
        return start(
            PROCESS, invoices, name, json.dumps(outbox), *commands[part], stdout=subprocess.DEVNULL, stderr=None
        )

    running = {part: run(part) for part in commands}
    with override_settings(OUTBOX=outbox):
        orders = place_orders(invoices, queue)
    choose = random.Random(7)
    faults = [*commands, "connections"] * 2
    choose.shuffle(faults)
    for fault in faults:
        before = sum(count(invoices).values())
        if fault == "connections":
            proxy.end_connections()
        else:
            os.kill(running[fault].pid, signal.SIGKILL)
            running[fault].wait()
            running[fault] = run(fault)
        eventually(partial(has_more, invoices, before), seconds=60)
    eventually(lambda: len(count(invoices)) == ORDERS, seconds=90)
    # What is still redelivered must not make a second invoice.
    eventually(lambda: not OutboxMessage.objects.using(invoices).pending().exists() and not broker.depth(queue))
    time.sleep(0.5)
    assert count(invoices) == Counter(orders)
    assert HandledMessage.objects.using(invoices).count() == ORDERS
    for process in running.values():
        process.terminate()
    assert [process.wait(30) for process in running.values()] == [0, 0, 0]


def has_more(using: str, before: int) -> bool:
    """Return whether there are more invoices than before, or all."""
    return sum(count(using).values()) > min(before, ORDERS - 1)


def outbox_of(using: str, queue: str, url: str) -> dict[str, Any]:
    return {
        "PUBLISHERS": {
            "default": {
                "BACKEND": "django_outbox.publishers.rabbitmq.RabbitMQPublisher",
                "OPTIONS": {"url": url, "exchange": ""},
            },
            "billing": {"BACKEND": "tests.support.invoices.InvoicePublisher", "OPTIONS": {"using": using}},
        },
        "CONSUMERS": {
            "billing": {
                "BACKEND": "django_outbox.inbox.rabbitmq.RabbitMQConsumer",
                "OPTIONS": {"url": url, "queue": queue, "publisher": "billing", "batch_size": BATCH},
            },
        },
    }


def place_orders(using: str, queue: str) -> list[str]:
    orders = [OutboxMessage(type="order.created", topic=queue, payload=n, key=f"order-{n % 20}") for n in range(ORDERS)]
    with transaction.atomic(using=using):
        enqueue_many(orders, using=using)
    return [str(order.message_id) for order in orders]
