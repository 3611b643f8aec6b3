"""The shop: what its view answers over HTTP, and that the demo is right about its figures."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Server, run_manage, shop_environment


class SQLiteShop:
    """The web server of a shop on SQLite, and what its database holds."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "shop.sqlite3"
        environment = shop_environment(DATABASE_URL=f"sqlite:///{self._path}")
        run_manage("migrate", "--verbosity=0", environment=environment)
        self.server = Server(folder / "server.log", environment)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path)) as connection, connection:
            return list(connection.execute(sql))

    def count(self) -> tuple[int, int]:
        """Return how many orders and how many messages there are."""
        return self.rows(
            "SELECT (SELECT count(*) FROM shop_order), (SELECT count(*) FROM django_outbox_outboxmessage)"
        )[0]


@pytest.fixture(scope="module")
def running_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLiteShop]:
    shop = SQLiteShop(tmp_path_factory.mktemp("shop"))
    yield shop
    shop.server.kill()


@pytest.fixture
def shop(running_shop: SQLiteShop) -> SQLiteShop:
    for table in ("shop_order", "django_outbox_outboxmessage"):
        running_shop.rows(f"DELETE FROM {table}")
    return running_shop


def test_an_order_is_saved_together_with_its_message(shop: SQLiteShop):
    status, answer = shop.server.order(customer="Grace", item="kettle", quantity=3, total="12.5", note=" gift ")
    assert status == 201
    assert shop.rows("SELECT id, customer, item, quantity, note FROM shop_order") == [
        (answer["id"], "Grace", "kettle", 3, " gift ")
    ]
    [(type, key, headers, payload)] = shop.rows("SELECT type, key, headers, payload FROM django_outbox_outboxmessage")
    assert (type, key) == ("order.placed", f"order-{answer['id']}")
    assert json.loads(headers) == {"correlation_id": answer["number"]}
    assert json.loads(payload) == {
        **answer,
        "customer": "Grace",
        "item": "kettle",
        "quantity": 3,
        "total": "12.5",
        "note": " gift ",
    }


def test_an_order_that_is_out_of_stock_is_rolled_back_with_its_message(shop: SQLiteShop):
    status, answer = shop.server.order(item="out-of-stock")
    assert (status, answer) == (409, {"errors": {"item": ["There are no 2 of out-of-stock."]}})
    assert shop.count() == (0, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("customer", ""),
        ("customer", None),
        ("customer", "x" * 201),
        ("item", "nul\x00"),
        ("quantity", 0),
        ("quantity", 1.5),
        ("quantity", "many"),
        ("quantity", True),
        ("total", "-1"),
        ("total", "1.234"),
        ("total", float("nan")),
        ("total", float("inf")),
    ],
)
def test_an_order_with_a_bad_field_is_refused_by_its_name(shop: SQLiteShop, field: str, value: object):
    status, answer = shop.server.order(**{field: value})
    assert status == 400
    assert list(answer["errors"]) == [field]
    assert shop.count() == (0, 0)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "The body is not JSON in UTF-8"),
        (b"{", "The body is not JSON in UTF-8"),
        (b"\xff", "The body is not JSON in UTF-8"),
        (b'{"note": "\\ud800"}', "The body is not JSON in UTF-8"),
        (b"[" * 100_000, "The body is not JSON in UTF-8"),
        (b"[]", "The body must be a JSON object"),
        (b'{"item": ["teapot"]}', "item must be a string or a number"),
    ],
    ids=["empty", "cut off", "not UTF-8", "lone surrogate", "deep", "not an object", "nested"],
)
def test_a_body_that_is_no_order_is_refused_with_the_reason(shop: SQLiteShop, body: bytes, problem: str):
    status, answer = shop.server.order(body)
    assert status == 400
    assert problem in answer["errors"]["body"][0]


def test_an_order_too_large_for_a_message_is_refused_and_not_saved(shop: SQLiteShop):
    status, answer = shop.server.order(note="x" * 1_100_000)
    assert status == 400
    assert "payload: is 1,100," in answer["errors"]["body"][0]
    assert shop.count() == (0, 0)


def test_the_first_page_tells_the_figures(shop: SQLiteShop):
    shop.server.order()
    page = shop.server.get("/")
    assert "1 orders" in page
    assert "1 messages pending, 0 failed" in page


@pytest.fixture
def demo_environment(tmp_path: Path) -> dict[str, str]:
    return shop_environment(DATABASE_URL=f"sqlite:///{tmp_path}/demo.sqlite3", DEMO_FILE=str(tmp_path / "demo.jsonl"))


def figures(output: str) -> dict[str, int]:
    """Read the table of the summary."""
    lines = [line.rsplit(maxsplit=1) for line in output.splitlines() if line.startswith("   ")]
    return {
        label.strip(): int(number) for label, number in (line for line in lines if len(line) == 2) if number.isdigit()
    }


def test_the_demo_ends_well_and_again_when_repeated(demo_environment: dict[str, str], tmp_path: Path):
    for _ in range(2):
        output = run_manage("demo", "--orders", "100", environment=demo_environment)
        assert figures(output) == {
            "orders sent": 100,
            "placed": 90,
            "rolled back": 10,
            "messages enqueued": 91,
            "failed at first": 1,
            "requeued": 1,
            "delivered": 91,
            "arrived": 91,
            "arrived twice": 0,
        }
        assert "invoice.requested failed: unroutable" in output
        assert output.count("   ok    ") == 6
        messages = [json.loads(line) for line in (tmp_path / "demo.jsonl").read_text().splitlines()]
        assert [message["type"] for message in messages] == ["order.placed"] * 90 + ["invoice.requested"]


def test_the_demo_ends_in_an_error_when_the_figures_do_not_agree(demo_environment: dict[str, str], tmp_path: Path):
    run_manage("migrate", "--verbosity=0", environment=demo_environment)
    with closing(sqlite3.connect(tmp_path / "demo.sqlite3")) as connection, connection:
        connection.execute(
            "CREATE TRIGGER one_lost AFTER INSERT ON django_outbox_outboxmessage WHEN new.id = 50 "
            "BEGIN DELETE FROM django_outbox_outboxmessage WHERE id = new.id; END"
        )
    output = run_manage("demo", "--orders", "100", environment=demo_environment, code=1)
    assert "WRONG there is one message an order, and one for the invoice" in output
    assert figures(output)["messages enqueued"] == 90


def test_the_demo_refuses_to_make_its_superuser_outside_development(demo_environment: dict[str, str], tmp_path: Path):
    environment = {**demo_environment, "DEBUG": "off", "SECRET_KEY": "secret"}
    assert "it needs DEBUG = True" in run_manage("demo", environment=environment, code=1)
    assert not (tmp_path / "demo.jsonl").exists()
