"""The figures of the guide to sizing: bytes a row are measured, and the rest is calculated from them."""

import random
import re
import string
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connections, transaction

from django_outbox import OutboxMessage, enqueue_many
from django_outbox.conf import OutboxSettings
from tests.conftest import ALIASES

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PAGE = (DOCS / "how-to" / "sizing.md").read_text()
ROWS = 4_000
OUTAGE = timedelta(hours=8)
RELAY = 5_000
"""Messages a second that a relay delivers, in the page's example."""
SIZES = {
    "postgresql": "SELECT pg_total_relation_size(%s)",
    "mysql": "SELECT data_length + index_length FROM information_schema.tables "
    "WHERE table_schema = database() AND table_name = %s",
}


def rows(columns: int) -> list[list[str]]:
    """Return the rows of the table with this number of columns, each of which begins with a number."""
    lines = re.findall(r"^\| ([\d,]+ \|.*) \|$", PAGE, re.MULTILINE)
    return [cells for cells in (line.split(" | ") for line in lines) if len(cells) == columns]


def read_bytes_kept() -> int:
    (found,) = re.findall(r"(\d+)\s+bytes\s+for\s+250\s+bytes\s+of\s+payload", PAGE)
    return int(found)


def number(cell: str) -> float:
    units = {"": 1, "s": 1, "min": 60, "h": 3600, "GB": 1e9}
    value, _, unit = cell.replace(",", "").partition(" ")
    return float(value) * units[unit]


@pytest.mark.slow
@pytest.mark.parametrize(("alias", "column"), [("postgresql", 1), ("mariadb", 2)], ids=["postgresql", "mariadb"])
@pytest.mark.parametrize("size", [250, 1_000])
@pytest.mark.django_db(transaction=True, databases=ALIASES)
def test_a_row_takes_the_bytes_that_the_guide_states(alias: str, column: int, size: int):
    (documented,) = [number(row[column]) for row in rows(3) if row[0] == f"{size:,}"]
    table, letters, chance = OutboxMessage._meta.db_table, string.ascii_letters + string.digits, random.Random(1)
    texts = ("".join(chance.choices(letters, k=size - len('{"id": 12345, "text": ""}'))) for _ in range(ROWS))
    with connections[alias].cursor() as cursor:
        # Deleted rows of other tests take space until a vacuum.
        cursor.execute(f"TRUNCATE TABLE {table}")
    with transaction.atomic(using=alias):
        enqueue_many(
            (
                OutboxMessage(type="order.created", key=f"order-{id}", payload={"id": id, "text": text})
                for id, text in enumerate(texts, 10_000)
            ),
            using=alias,
        )
    with connections[alias].cursor() as cursor:
        cursor.execute(f"ANALYZE {'TABLE ' if connections[alias].vendor == 'mysql' else ''}{table}")
        cursor.execute(SIZES[connections[alias].vendor], [table])
        assert cursor.fetchone()[0] / ROWS == pytest.approx(documented, rel=0.2)


def test_the_guide_calculates_days_disk_and_the_time_to_catch_up():
    bytes_kept = read_bytes_kept()
    (waiting,) = [number(row[1]) for row in rows(3) if row[0] == "250"]
    retention = OutboxSettings(publishers={}).retention
    assert retention == timedelta(days=7)
    assert len(rows(5)) == 4
    for row in rows(5):
        rate, day, kept, outage, seconds = map(number, row)
        assert day == rate * 86_400
        assert kept == pytest.approx(rate * retention.total_seconds() * bytes_kept, rel=0.05)
        assert outage == pytest.approx(rate * OUTAGE.total_seconds() * waiting, rel=0.05)
        assert seconds == pytest.approx(rate * OUTAGE.total_seconds() / (RELAY - rate), rel=0.05)


def test_the_frequent_questions_have_the_figures_of_the_guides():
    questions = " ".join((DOCS / "faq.md").read_text().split())
    performance = (DOCS / "how-to" / "performance.md").read_text()
    (kept,) = [row[2] for row in rows(5) if row[0] == "100"]
    (confirmed,) = re.findall(r"^\| 100 \| [^|]* \| ([^|]*) / ([^|]*) \| [^|]* \|$", performance, re.MULTILINE)
    bytes_kept = read_bytes_kept()
    assert f"{bytes_kept} bytes" in questions
    assert f"{kept} at 100 messages a second" in questions
    assert f"{confirmed[0]} ms of their commit, and 99 % within {confirmed[1]} ms" in questions
