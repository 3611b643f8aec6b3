"""The processes of the shop and of billing, each in its own place."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.faults.brokers.rabbitmq import RabbitMQ
from tests.faults.orders.plan import BILLING, QUEUE, RECEIVED, Plan
from tests.faults.orders.writer import Options
from tests.faults.places import Place
from tests.faults.servers import DatabaseServer
from tests.support.children import ROOT, Nursery
from tests.support.proxies import Proxies

MANAGE = [sys.executable, "-m", "django"]

SHOP_RELAY = [*MANAGE, "run_outbox"]
INBOX = [*MANAGE, "run_inbox"]
BILLING_RELAY = [*MANAGE, "run_outbox", "--publisher", "handlers"]


class Services:
    """The commands and environments of the services, and their journals.

    Attributes:
        journals: those of the writers.
        received: the numbers of messages that the inboxes received.
        limit: the file with the number of orders that each writer may have committed.
    """

    def __init__(self, plan: Plan, nursery: Nursery, database: DatabaseServer, broker: RabbitMQ) -> None:
        self._plan = plan
        self._database = database
        self._broker = broker
        self.journals = [nursery.logs / f"writer-{number}.journal" for number in range(plan.writers)]
        self.received = nursery.logs / RECEIVED
        self.limit = nursery.directory / "limit"
        for journal in (*self.journals, self.received):
            journal.write_text("")
        self.allow(0)

    def allow(self, orders: float) -> None:
        """Let each writer commit up to a number of orders."""
        new = self.limit.with_suffix(".new")
        new.write_text(str(int(orders)))
        new.replace(self.limit)

    def shop(self, user: str = "relay", *, broker_port: int = 0) -> dict[str, str]:
        """Return the environment of a process of the shop; the port is that of a proxy."""
        return self._environment(
            broker_port,
            DJANGO_SETTINGS_MODULE="tests.faults.orders.shop_settings",
            DATABASE_URL=self._database.url(user),
        )

    def billing(self, *, broker_port: int = 0) -> dict[str, str]:
        """Return the environment of a process of billing; the port is that of a proxy."""
        return self._environment(
            broker_port,
            DJANGO_SETTINGS_MODULE="tests.faults.orders.billing_settings",
            BILLING_DATABASE_URL=self._database.url("relay", database=BILLING),
            FAULTS_CONSUMER=self._plan.consumer,
            FAULTS_RECEIVED=str(self.received),
        )

    def make_places(self, proxies: Proxies) -> list[Place]:
        """Return the places: two of each service by default, and those of the writers."""
        return [
            *self._make(proxies, "shop-relay", SHOP_RELAY, is_shop=True),
            *self._make(proxies, "inbox", INBOX, is_shop=False),
            *self._make(proxies, "billing-relay", BILLING_RELAY, is_shop=False),
            *self._make_writers(proxies),
        ]

    def _make(self, proxies: Proxies, name: str, command: Sequence[str], *, is_shop: bool) -> Iterator[Place]:
        for number in range(self._plan.each):
            # No proxy before the database: it would slow down each of a handler's statements.
            broker = proxies.open(self._broker.port)
            environment = (self.shop if is_shop else self.billing)(broker_port=broker.port)
            yield Place(f"{name}-{number}", command, environment, None, broker)

    def _make_writers(self, proxies: Proxies) -> Iterator[Place]:
        for number, journal in enumerate(self.journals):
            orders = self._plan.orders // self._plan.writers + (number < self._plan.orders % self._plan.writers)
            options = Options(number, self._plan.seed, orders, str(journal), str(self.limit))
            command = [sys.executable, "-m", "tests.faults.orders.writer", json.dumps(asdict(options))]
            proxy = proxies.open(self._broker.port)
            yield Place(f"writer-{number}", command, self.shop("writer"), None, proxy, ends=True)

    def _environment(self, broker_port: int, **variables: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "testproject"))),
            "PYTHONUNBUFFERED": "1",
            "BROKER_URL": self._broker.url(broker_port or None),
            "BILLING_QUEUE": QUEUE,
            **variables,
        }


def count_lines(paths: Sequence[Path], ending: str) -> int:
    """Return the number of lines with an ending in some files."""
    return sum(path.read_bytes().count(f"{ending}\n".encode()) for path in paths)
