"""The shop's view over HTTP, and the demo with its figures."""

import json
import re
import shutil
import sqlite3
import urllib.parse
import urllib.request
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from django.conf import settings

from tests.publishers.subjects.base import unique_name
from tests.support.databases import Database
from tests.support.nats.tools import Nats
from tests.support.shop import Server, Shop, run_manage, shop_environment

pytestmark = pytest.mark.slow


@pytest.fixture
def demo_environment(tmp_path: Path) -> dict[str, str]:
    return demo_settings(tmp_path)


def demo_settings(folder: Path) -> dict[str, str]:
    return shop_environment(
        DATABASE_URL=f"sqlite:///{folder}/demo.sqlite3",
        BILLING_DATABASE_URL=f"sqlite:///{folder}/billing.sqlite3",
        DEMO_FILE=str(folder / "demo.jsonl"),
    )


def figures(output: str) -> dict[str, int]:
    """Read the table of the summary."""
    lines = [line.rsplit(maxsplit=1) for line in output.splitlines() if line.startswith("   ")]
    return {
        label.strip(): int(number) for label, number in (line for line in lines if len(line) == 2) if number.isdigit()
    }


CHECKS = 10
"""The number of statements that the demo proves."""


class RepeatedDemo(NamedTuple):
    """The outputs of two runs of the demo in the same databases, the first one with Redis, and the environment."""

    on_redis: str
    output: str
    environment: dict[str, str]
    folder: Path

    def arrivals(self) -> list[dict[str, Any]]:
        """Return the messages that the second run printed."""
        return [json.loads(line) for line in (self.folder / "demo.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def repeated_demo(tmp_path_factory: pytest.TempPathFactory) -> RepeatedDemo:
    folder, name = tmp_path_factory.mktemp("demo"), unique_name()
    environment = demo_settings(folder)
    redis_settings = {"BROKER_URL": settings.REDIS_URL, "SHOP_EXCHANGE": name, "BILLING_QUEUE": name}
    try:
        on_redis = run_manage("demo", "--orders", "40", environment={**environment, **redis_settings})
    finally:
        with redis.Redis.from_url(settings.REDIS_URL) as client:
            client.delete(*client.scan_iter(f"{name}.*"))
    return RepeatedDemo(on_redis, run_manage("demo", "--orders", "100", environment=environment), environment, folder)


def test_the_demo_succeeds_and_can_be_repeated(repeated_demo: RepeatedDemo):
    output = repeated_demo.output
    assert figures(output) == {
        "orders sent": 100,
        "saved": 90,
        "rolled back": 10,
        "messages enqueued": 92,
        "in flight at the kill": 15,
        "failed at first": 2,
        "requeued": 1,
        "delivered": 91,
        "left failed": 1,
        "messages arrived": 91,
        "duplicates": 15,
        "receipts": 90,
        "invoices": 90,
    }
    assert "report.requested failed: unroutable" in output
    assert output.count("   ok    ") == CHECKS
    types = Counter(message["type"] for message in repeated_demo.arrivals())
    assert types == {"order.placed": 90 + 15, "report.requested": 1}


def test_the_demo_kills_a_relay_whose_batch_another_relay_delivers_again(repeated_demo: RepeatedDemo):
    output = repeated_demo.output
    process = re.search(r"Process (\d+) is dead", output)
    assert process, output
    assert not Path(f"/proc/{process[1]}").exists()
    arrivals = [message["message_id"] for message in repeated_demo.arrivals()]
    # The relay settled its first batch of 15, and died with the second one.
    assert [arrivals.count(message_id) for message_id in arrivals[:30]] == [1] * 15 + [2] * 15


def test_the_demo_kills_a_relay_whose_handler_writes_each_receipt_once(repeated_demo: RepeatedDemo):
    # A batch ends early on a busy machine, so that no handler is held up for long.
    assert re.search(r"Its first batch of \d+ receipts? was committed", repeated_demo.output)
    with closing(sqlite3.connect(repeated_demo.folder / "demo.sqlite3")) as connection:
        receipts = connection.execute("SELECT order_id, total FROM shop_receipt ORDER BY order_id").fetchall()
        assert receipts == connection.execute("SELECT id, total FROM shop_order ORDER BY id").fetchall()
        confirmed = connection.execute("SELECT count(confirmed) FROM shop_receipt").fetchone()
    # With Redis, a worker of Celery would confirm the receipts.
    assert confirmed == (90,)


def test_the_demo_has_one_invoice_for_each_order_although_messages_arrived_twice(repeated_demo: RepeatedDemo):
    with closing(sqlite3.connect(repeated_demo.folder / "billing.sqlite3")) as connection:
        invoices = connection.execute("SELECT order_number, customer, total FROM billing_invoice").fetchall()
    with closing(sqlite3.connect(repeated_demo.folder / "demo.sqlite3")) as connection:
        orders = connection.execute("SELECT number, customer, total FROM shop_order").fetchall()
    assert len(invoices) == 36 + 90
    assert sorted(invoices) == sorted(orders)


def test_the_demo_leaves_a_failed_message_to_requeue_in_the_admin(repeated_demo: RepeatedDemo):
    with closing(sqlite3.connect(repeated_demo.folder / "demo.sqlite3")) as connection:
        failed = connection.execute("SELECT type FROM django_outbox_outboxmessage WHERE failed_at IS NOT NULL")
        assert failed.fetchall() == [("refund.requested",)] * 2
    server = Server(repeated_demo.folder / "server.log", repeated_demo.environment)
    try:
        output = repeated_demo.output
        path = re.search(r"http://127.0.0.1:8000(/\S+)", output)
        login = re.search(r"user (\w+), password (\w+) \(created for this demo\)", output)
        assert path, output
        assert login, output
        page = log_in(server.address, path[1], username=login[1], password=login[2])
    finally:
        server.kill()
    assert "refund.requested" in page


def test_the_shop_refuses_an_order_with_the_reason(repeated_demo: RepeatedDemo):
    server = Server(repeated_demo.folder / "refusing.log", repeated_demo.environment)
    try:
        status, answer = server.order(quantity=0)
        assert (status, [*answer["errors"]]) == (400, ["quantity"])
        status, answer = server.order(note="x" * 1_100_000)
        assert (status, [*answer["errors"]]) == (400, ["body"])
        assert "payload: is 1,100," in answer["errors"]["body"][0]
    finally:
        server.kill()


def log_in(address: str, path: str, **credentials: str) -> str:
    """Log in to the admin as a person would, and return the page that they wanted to see."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    form = browser.open(f"{address}{path}").read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
    assert token, form
    fields = {**credentials, "csrfmiddlewaretoken": token[1], "next": path}
    return str(browser.open(f"{address}/admin/login/", urllib.parse.urlencode(fields).encode()).read().decode())


def test_the_demo_succeeds_on_postgresql_and_rabbitmq(tmp_path: Path):
    with Database("postgresql") as database, Shop(database, tmp_path) as shop:
        output = shop.manage("demo", "--orders", "40")
    assert f"exchange {shop.queue}, queue {shop.queue}" in output
    assert output.count("   ok    ") == CHECKS
    assert {"messages arrived": 37, "left failed": 1, "receipts": 36, "invoices": 36}.items() <= figures(output).items()
    assert figures(output)["duplicates"] == figures(output)["in flight at the kill"] > 0


def test_the_demo_succeeds_on_redis(repeated_demo: RepeatedDemo):
    output = repeated_demo.on_redis
    assert re.search(r"Redis, streams \S+\.\*", output)
    assert output.count("   ok    ") == CHECKS
    assert {"messages arrived": 37, "left failed": 1, "invoices": 36}.items() <= figures(output).items()


def test_the_demo_succeeds_on_nats_which_drops_duplicates(demo_environment: dict[str, str]):
    name = unique_name()
    environment = {**demo_environment, "BROKER_URL": settings.NATS_URL, "SHOP_EXCHANGE": name, "BILLING_QUEUE": name}
    try:
        output = run_manage("demo", "--orders", "40", environment=environment)
    finally:
        with Nats() as nats:
            nats.run(lambda: nats.js.delete_stream(name))
    assert f"NATS, stream {name}" in output
    assert output.count("   ok    ") == CHECKS
    assert {"messages arrived": 37, "duplicates": 0, "invoices": 36}.items() <= figures(output).items()


def test_the_demo_names_a_broker_that_it_cannot_use(demo_environment: dict[str, str]):
    output = run_manage("demo", environment={**demo_environment, "BROKER_URL": "kafka://127.0.0.1:9092"}, code=1)
    assert "The demo cannot use the broker of BROKER_URL" in output


def test_the_demo_exits_with_1_when_the_figures_disagree(repeated_demo: RepeatedDemo, tmp_path: Path):
    folder = shutil.copytree(repeated_demo.folder, tmp_path / "copy")
    with closing(sqlite3.connect(folder / "demo.sqlite3")) as connection, connection:
        ((last,),) = connection.execute("SELECT max(id) FROM django_outbox_outboxmessage")
        connection.execute(
            f"CREATE TRIGGER one_lost AFTER INSERT ON django_outbox_outboxmessage "
            f"WHEN new.id IN ({last + 49}, {last + 50}) "
            f"BEGIN DELETE FROM django_outbox_outboxmessage WHERE id = new.id; END"
        )
    output = run_manage("demo", "--orders", "100", environment=demo_settings(folder), code=1)
    assert "WRONG Each order has exactly one receipt" in output
    assert "WRONG Each order has exactly one invoice" in output
    assert "WRONG Each order, the report and the refund has exactly one message." in output
    assert figures(output)["messages enqueued"] == 91


def test_the_demo_refuses_to_create_its_superuser_outside_development(demo_environment: dict[str, str], tmp_path: Path):
    environment = {**demo_environment, "DEBUG": "off", "SECRET_KEY": "secret"}
    assert "it requires DEBUG = True" in run_manage("demo", environment=environment, code=1)
    assert not (tmp_path / "demo.jsonl").exists()
