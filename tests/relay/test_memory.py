"""The relay's memory: a backlog of the largest payloads goes through a process that stays small."""

import base64
import os
import subprocess
import sys

import pytest
from django.conf import settings
from django.db import connections, transaction

from django_outbox import OutboxMessage, enqueue_many
from tests.conftest import ALIASES
from tests.support.rabbitmq.tools import Broker

pytest_plugins = ["tests.support.rabbitmq.fixtures"]
pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

GIANTS = int(os.environ.get("OUTBOX_TEST_GIANTS", "40"))
"""How many payloads of 1 MiB there are; memory does not depend on it."""

MOST = 150
"""The megabytes that the process may take."""

RELAY = """
import sys
from pathlib import Path
import django

alias, name, url, exchange = sys.argv[1:]
from tests import settings
settings.DATABASES[alias]["NAME"] = name
options = {"url": url, "exchange": exchange}
settings.OUTBOX = {
    "PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher", "OPTIONS": options}}
}
django.setup()
from django_outbox.relay import Relay
with Relay(using=alias, workers=2) as relay:
    processed = relay.drain().processed
# Not getrusage(): its ru_maxrss begins with what the parent had at the fork.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(processed, int(status["VmHWM"].split()[0]) // 1024)
"""


@pytest.mark.slow
def test_a_backlog_of_payloads_of_a_mebibyte_is_delivered_in_little_memory(broker: Broker, using: str):
    # No two payloads are alike, and none can be compressed. The queue keeps the last ten.
    queue = broker.queue(max_length=10)
    exchange = broker.exchange("fanout")
    broker.channel.queue_bind(queue, exchange)
    text = base64.b64encode(os.urandom(785_000)).decode()
    for number in range(GIANTS):
        key = f"k{number % 20}" if number % 2 else ""
        with transaction.atomic(using=using):
            enqueue_many([OutboxMessage(type="t", key=key, payload=f"{number} {text}")], using=using)
    name = str(connections[using].settings_dict["NAME"])
    ended = subprocess.run(
        [sys.executable, "-c", RELAY, using, name, settings.AMQP_URL, exchange],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    processed, megabytes = map(int, ended.stdout.split())
    assert processed == GIANTS
    assert megabytes < MOST
