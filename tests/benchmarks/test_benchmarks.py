"""Each benchmark runs to its end, prints ratios and leaves nothing behind."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pika.exceptions
import pytest
from django.conf import settings

from tests.benchmarks.brokers.base import Broker
from tests.benchmarks.brokers.kafka import Kafka
from tests.benchmarks.brokers.nats import JetStream
from tests.benchmarks.brokers.rabbitmq import ClassicQueues
from tests.benchmarks.brokers.redis import RedisStreams
from tests.benchmarks.messages import claimed, make_messages
from tests.support.databases import Database
from tests.support.jars import KAFKA
from tests.support.kafka.shared import is_real
from tests.support.shop import PATIENCE, ROOT, broker_channel, shop_environment
from tests.support.waiting import eventually

RUNS = {
    "drain": ("--messages=100 --keys=9 --broker rabbitmq nats", 6),
    "living": ("--seconds=1 --rates 50 --keys 0 --broker rabbitmq", 3),
    "enqueue": ("--messages=10 --writers=2", 8),
    "growth": ("--messages=2000 --rows=200 --cases backoff snapshot", 4),
    "celery": ("--messages=20", 5),
    "inbox": ("--messages=100 --batch-size=20", 6),
}
"""Options of a short run, and the number of cases that it measures."""


def start(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks", *arguments],
        cwd=ROOT,
        env=shop_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*arguments: str, **environment: str) -> tuple[str, int]:
    """Run a benchmark to its end, and return what it printed and its process id."""
    with start(*arguments, **environment) as process:
        try:
            output = process.communicate(timeout=PATIENCE)[0]
        except subprocess.TimeoutExpired:
            # So that it removes its database and queues.
            process.terminate()
            process.communicate(timeout=30)
            raise
        finally:
            process.kill()
    assert process.returncode == 0, output
    return output, process.pid


def assert_nothing_is_left(pid: int, database: Database) -> None:
    databases = "SELECT count(*) FROM pg_database WHERE datname = %s"
    assert database.rows(databases, f"test_outbox_benchmark_{pid}") == [(0,)]
    for name in ("classic-orders-0", "quorum-orders-0"):
        assert not has_queue(pid, name)


def has_queue(pid: int, name: str) -> bool:
    with broker_channel() as channel:
        try:
            channel.queue_declare(f"outbox-benchmark-{pid}-{name}", passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_benchmark_compares_its_cases_and_leaves_nothing_behind(name: str, tmp_path: Path):
    options, cases = RUNS[name]
    if name != "living":
        options += " --repeats=1"
    file = tmp_path / "report.json"
    with Database("postgresql") as database:
        printed, pid = run(
            *(name, *options.split(), f"--json={file}"),
            DATABASE_URL=database.url,
            AMQP_URL=settings.AMQP_URL,
            REDIS_URL=settings.REDIS_URL,
            NATS_URL=settings.NATS_URL,
        )
        assert_nothing_is_left(pid, database)
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    assert len(rows) == cases
    for row in rows:
        assert str(next(iter(row.values()))) in printed
        assert all(value > 0 for column, value in row.items() if re.fullmatch(r"msg/s|p\d+", column))


def test_a_benchmark_that_is_stopped_early_leaves_nothing_behind():
    with Database("postgresql") as database:
        with start(
            "drain", "--repeats=1000", "--messages=2000", DATABASE_URL=database.url, AMQP_URL=settings.AMQP_URL
        ) as process:
            try:
                eventually(lambda: has_queue(process.pid, "quorum-orders-0"), seconds=PATIENCE)
                process.terminate()
                process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
        assert process.returncode == 128 + signal.SIGTERM
        assert_nothing_is_left(process.pid, database)


@pytest.mark.parametrize("make", [ClassicQueues, RedisStreams, JetStream, Kafka])
def test_the_limit_of_a_broker_is_measured_with_messages_that_arrive(make: type[Broker]):
    if make is Kafka and not (is_real() or KAFKA.is_usable):
        pytest.skip(KAFKA.remedy)
    if make.setting and not hasattr(settings, make.setting):
        pytest.skip(f"the settings have no {make.setting}")
    with make(2) as broker:
        messages = claimed(make_messages(50, topics=broker.topics))
        for _ in range(2):
            # The second time, to destinations that are empty again.
            assert broker.measure_limit(messages).messages == broker.count() == 50
