"""The benchmarks that set the outbox beside something plain: the database alone, enqueueing, latency and growth."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.costs import CASES
from benchmarks.growth import _rate
from benchmarks.relay_process import Told
from django.conf import settings

from tests.processes import Database
from tests.test_benchmarks import MARIADB, Benchmark, assert_nothing_is_left

SERVERS = pytest.mark.parametrize("alias", ["postgresql", MARIADB])


def measure(alias: str, name: str, *options: str, file: Path, kinds: tuple[str, ...] = ()) -> tuple[Benchmark, Any]:
    """Run a benchmark to its end, and return it with the figures that it wrote."""
    with Database(alias) as database:
        benchmark = Benchmark(
            name, *options, "--json", str(file), DATABASE_URL=database.url, AMQP_URL=settings.AMQP_URL
        )
        assert_nothing_is_left(benchmark.pid, database, kinds)
    figures = json.loads(file.read_text())["figures"]
    assert min(value for name, value in figures.items() if "share" not in name and "microseconds" not in name) > 0
    return benchmark, figures


@pytest.mark.slow
@SERVERS
def test_the_database_alone_is_set_beside_bare_sql(alias: str, tmp_path: Path):
    sizes = ("--messages", "300", "--keys", "7", "--batch-size", "50", "--repeats", "1", "--workers", "1", "2")
    benchmark, figures = measure(alias, "database", *sizes, file=tmp_path / "database.json")
    cases = [
        [retention, workers, *what]
        for retention in (["none"], ["7", "days"])
        for workers in ("1", "2")
        for what in (["bare", "SQL"], ["outbox,", "no", "key"], ["outbox,", "keys"])
    ]
    expected = [[*case[0], *case[1:]] for case in cases]
    assert [row.split()[: len(words)] for row, words in zip(benchmark.table(), expected, strict=True)] == expected
    for kept in ("kept", "deleted"):
        assert figures[f"bare_{kept}_workers_2_ratio"] == 1
        rate = figures[f"keyed_{kept}_workers_2_rate"]
        assert figures[f"keyed_{kept}_workers_2_ratio"] == pytest.approx(rate / figures[f"bare_{kept}_workers_2_rate"])


@pytest.mark.slow
@SERVERS
def test_each_setting_is_set_beside_the_drain_without_it(alias: str, tmp_path: Path):
    sizes = ("--messages", "200", "--keys", "7", "--repeats", "1")
    benchmark, figures = measure(alias, "costs", *sizes, file=tmp_path / "costs.json", kinds=("quorum", "classic"))
    rows = benchmark.table()
    assert rows[0].split()[0] == "nothing"
    assert len(rows) == len(CASES)
    for case in CASES:
        assert figures[f"{case.slug}_ratio"] == pytest.approx(figures[f"{case.slug}_rate"] / figures["nothing_rate"])
        assert figures[f"{case.slug}_relay_microseconds"] > 0


@pytest.mark.slow
@SERVERS
def test_enqueueing_is_set_beside_plain_rows(alias: str, tmp_path: Path):
    sizes = ("--messages", "20", "--many", "300", "--writers", "3", "--repeats", "1")
    benchmark, figures = measure(alias, "enqueue", *sizes, file=tmp_path / "enqueue.json")
    calls = ["create()", "enqueue()", "create()", "enqueue()"]
    calls += ["bulk_create()", "enqueue_many()", "bulk_create()", "enqueue_many()"]
    assert [row.split()[:2] for row in benchmark.table()] == [
        [call, writers] for call, writers in zip(calls, ["1", "1", "3", "3"] * 2, strict=True)
    ]
    for name in ("enqueue_writers_1", "enqueue_writers_3", "enqueue_many_writers_1", "enqueue_many_writers_3"):
        assert figures[f"{name}_rate_ratio"] == pytest.approx(1 / figures[f"{name}_cost_ratio"])


@pytest.mark.slow
@SERVERS
def test_latency_is_told_for_polling_and_where_the_database_can_for_waking(alias: str, tmp_path: Path):
    sizes = ("--seconds", "1", "--rates", "50")
    benchmark, figures = measure(alias, "latency", *sizes, file=tmp_path / "latency.json", kinds=("quorum",))
    modes = ["polled", "woken"] if alias == "postgresql" else ["polled"]
    assert [row.split()[:2] for row in benchmark.table()] == [[mode, "50"] for mode in modes]
    for mode in modes:
        p50, p95, p99 = (figures[f"{mode}_50_{share}_ms"] for share in ("p50", "p95", "p99"))
        assert p50 <= p95 <= p99


# All of a case are delivered, and no more: the pending rows that are left over stay.
BESIDE_FRESH = {"processed": 120, "pending": 120, "backoff": 120, "snapshot": 480}
LARGER = {"10kB": 120, "1MiB": 120}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alias", "beside_fresh", "larger"),
    [("postgresql", BESIDE_FRESH, LARGER), (MARIADB, {"snapshot": 480}, {})],
)
def test_growth_drains_each_hard_table_beside_a_fresh_one(
    alias: str, beside_fresh: dict[str, int], larger: dict[str, int], tmp_path: Path
):
    cases = beside_fresh | larger
    sizes = ("--messages", "120", "--processed", "500", "--pending", "400", "--backoff", "300", "--repeats", "1")
    options = (*sizes, "--cases", *cases)
    benchmark, figures = measure(alias, "growth", *options, file=tmp_path / "growth.json", kinds=("quorum",))
    assert [row.split()[:2] for row in benchmark.table()] == [[name, str(count)] for name, count in cases.items()]
    for name in beside_fresh:
        assert figures[f"{name}_ratio"] == pytest.approx(figures[f"{name}_rate"] / figures[f"{name}_fresh_rate"])
    for name in larger:
        # A rate of larger messages stands beside no other.
        assert {figure for figure in figures if figure.startswith(name)} == {f"{name}_rate", f"{name}_peak_megabytes"}


def test_a_rate_counts_from_the_first_batch_or_from_a_part_of_all():
    told = Told({}, settled=[(11.0, 100), (12.0, 100), (16.0, 100), (18.0, 100)], began=5.0, peak_megabytes=1.0)
    assert _rate(told) == 300 / 7
    assert _rate(told, 0.75) == 100 / 2
    assert _rate(Told({}, settled=[(6.0, 40)], began=5.0, peak_megabytes=1.0)) == 40
