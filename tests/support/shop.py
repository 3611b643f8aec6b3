"""The shop as a person runs it: processes that share a temporary database, exchange and queue."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pika
from django.conf import settings

from tests.support.databases import Database
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = ROOT / "testproject"

PATIENCE = 120
"""Seconds within which whatever is waited for must have come."""


class Process:
    """A running command of the shop, whose output goes to a file."""

    def __init__(self, arguments: list[str], log: Path, environment: dict[str, str], folder: Path = PROJECT) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                arguments, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, *signals: signal.Signals) -> None:
        for each in signals:
            self._process.send_signal(each)

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    def stop(self) -> None:
        """Send SIGTERM, and expect that it ends well."""
        self.send(signal.SIGTERM)
        assert self.wait() == 0, self.output

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def until_it_says(self, text: str) -> None:
        eventually(lambda: text in self.output or not self.running, seconds=PATIENCE)
        assert text in self.output, self.output


class Server(Process):
    """Django's web server, with the shop in it."""

    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        super().__init__([sys.executable, "manage.py", "runserver", "--noreload", "127.0.0.1:0"], log, environment)
        self.until_it_says("Quit the server")
        address = re.search(r"http://127\.0\.0\.1:\d+", self.output)
        assert address, self.output
        self.address = address[0]

    def order(self, **order: Any) -> tuple[int, Any]:
        """Place an order over HTTP and return the status and the decoded answer."""
        complete = {"customer": "Ada", "item": "teapot", "quantity": 2, "total": "49.00", **order}
        data = json.dumps(complete).encode()
        request = urllib.request.Request(f"{self.address}/orders/", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


class Shop:
    """The shop's commands, and what can be asked of its database and its queue."""

    def __init__(self, database: Database, folder: Path, billing_database_url: str = "") -> None:
        self.database = database
        self.queue = f"outbox-test-{uuid.uuid4().hex[:8]}"
        self.celery_queue = f"{self.queue}-celery"
        self.billing_queue = f"{self.queue}-billing"
        self.billing_database_url = billing_database_url or f"sqlite:///{folder}/billing.sqlite3"
        self._folder = folder
        self._processes: list[Process] = []
        self.environment = shop_environment(
            DATABASE_URL=database.url,
            BROKER_URL=settings.AMQP_URL,
            SHOP_EXCHANGE=self.queue,
            SHOP_QUEUE=self.queue,
            BILLING_DATABASE_URL=self.billing_database_url,
            BILLING_QUEUE=self.billing_queue,
            CELERY_QUEUE=self.celery_queue,
        )

    def manage(self, *arguments: str) -> str:
        """Run a management command to its end, expect that it ends well, and return what it printed."""
        return run_manage(*arguments, environment=self.environment)

    def start(self, *arguments: str) -> Process:
        return self._start("manage.py", *arguments)

    def start_celery(self, *arguments: str) -> Process:
        return self._start("-m", "celery", "-A", "project", *arguments)

    def start_server(self) -> Server:
        server = Server(self._next_log(), self.environment)
        self._processes.append(server)
        return server

    def start_consumer(self) -> Process:
        """Start the consumer, and wait until its queue is there."""
        consumer = self.start("consume_orders")
        consumer.until_it_says("Reading")
        return consumer

    def place_orders(self, count: int, rollback_every: int = 10) -> int:
        """Place orders through the shop's view, and return how many of them were saved."""
        before = self.count_messages()
        printed = self.manage("place_orders", "--count", str(count), "--rollback-every", str(rollback_every))
        saved = count - (count // rollback_every if rollback_every else 0)
        assert printed.startswith(f"{saved:,} orders placed, {count - saved:,} rolled back"), printed
        assert self.count_messages() == self.database.count("1 = 1", "shop_order") == before + saved
        assert self.database.count("publisher = 'handlers'") == before + saved
        return saved

    def count_messages(self, condition: str = "1 = 1") -> int:
        """Return how many messages for other services fulfil a condition in SQL."""
        return self.database.count(f"publisher = 'default' AND {condition}")

    def unprocessed(self) -> int:
        """Return how many rows are pending or failed, except for those of Celery's tasks."""
        return self.database.count("processed_at IS NULL AND publisher <> 'celery'")

    def wait_for_arrivals(self, count: int, consumer: Process) -> None:
        """Wait until that many different messages have arrived, and the handlers are done; stop the consumer."""
        eventually(lambda: self.database.count("1 = 1", "shop_receivedmessage") >= count, seconds=PATIENCE)
        eventually(lambda: not self.unprocessed(), seconds=PATIENCE)
        consumer.stop()

    def assert_everything_arrived(self) -> int:
        """Expect that exactly the messages of the saved orders arrived; return how many arrived more than once.

        Each of them also has a receipt.
        """
        assert self.depth() == 0, "the consumer has not read everything"
        assert self.unprocessed() == 0, "a message is pending or failed"
        enqueued = self.database.rows(
            "SELECT message_id, type FROM django_outbox_outboxmessage WHERE publisher = 'default'"
        )
        received = self.database.rows("SELECT message_id, type FROM shop_receivedmessage")
        assert sorted(received) == sorted(enqueued)
        orders = sorted(id for (id,) in self.database.rows("SELECT id FROM shop_order"))
        assert sorted(payload["id"] for payload in self.payloads()) == orders
        assert sorted(id for (id,) in self.database.rows("SELECT order_id FROM shop_receipt")) == orders
        assert not [payload for payload in self.payloads() if payload["item"] == "out-of-stock"]
        duplicates = self.database.rows("SELECT coalesce(sum(deliveries - 1), 0) FROM shop_receivedmessage")
        return int(duplicates[0][0])

    def payloads(self) -> list[Any]:
        rows = self.database.rows("SELECT payload FROM shop_receivedmessage ORDER BY id")
        return [json.loads(payload) if isinstance(payload, str) else payload for (payload,) in rows]

    def depth(self) -> int:
        """Return how many messages the queue holds that no consumer has."""
        with broker_channel() as channel:
            return int(channel.queue_declare(self.queue, passive=True).method.message_count)

    def __enter__(self) -> "Shop":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.running:
                process.kill()
        with broker_channel() as channel:
            for queue in (self.queue, self.celery_queue, self.billing_queue):
                channel.queue_delete(queue)
                channel.exchange_delete(queue)

    def _start(self, *arguments: str) -> Process:
        process = Process([sys.executable, *arguments], self._next_log(), self.environment)
        self._processes.append(process)
        return process

    def _next_log(self) -> Path:
        return self._folder / f"{len(self._processes)}.log"


@contextmanager
def migrated_database(alias: str, folder: Path) -> Iterator[Database]:
    with Database(alias) as database:
        with Shop(database, folder) as shop:
            shop.manage("migrate", "--verbosity=0")
        yield database


@contextmanager
def broker_channel() -> Iterator[Any]:
    with closing(pika.BlockingConnection(pika.URLParameters(settings.AMQP_URL))) as connection:
        yield connection.channel()


def shop_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a process of the shop: nothing of the test run's own, and these variables."""
    kept = {name: value for name, value in os.environ.items() if name not in ("DJANGO_SETTINGS_MODULE", "BROKER_URL")}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **variables}


def run_manage(*arguments: str, environment: dict[str, str], code: int = 0) -> str:
    """Run a management command to its end, expect its exit code, and return what it printed."""
    ended = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE * 5,
        check=False,
    )
    assert ended.returncode == code, ended.stdout
    return ended.stdout
