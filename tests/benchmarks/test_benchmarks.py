"""Each benchmark runs to its end, prints ratios and leaves nothing behind; its report, its plot and its messages."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pika.exceptions
import pytest
from django.conf import settings

from django_outbox import OutboxMessage
from tests.benchmarks import messages
from tests.benchmarks.messages import fill, make_messages
from tests.benchmarks.plot import draw_ladder
from tests.benchmarks.relay_process import RelayReport
from tests.benchmarks.report import Report
from tests.conftest import ALIASES
from tests.support.databases import Database
from tests.support.shop import PATIENCE, ROOT, broker_channel, shop_environment
from tests.support.waiting import eventually

NAMES = (
    "ladder",
    "drain",
    "costs",
    "database",
    "latency",
    "enqueue",
    "scale",
    "growth",
    "archive",
    "monitoring",
    "celery",
    "inbox",
)


class Benchmark:
    """A run of `python -m tests.benchmarks` to its end."""

    def __init__(self, *arguments: str, code: int = 0, **environment: str) -> None:
        with start(*arguments, **environment) as process:
            try:
                self.output = process.communicate(timeout=PATIENCE)[0]
            except subprocess.TimeoutExpired:
                # So that it removes its database and queues.
                process.terminate()
                process.communicate(timeout=30)
                raise
            finally:
                process.kill()
            self.pid = process.pid
        assert process.returncode == code, self.output

    def table(self) -> list[list[str]]:
        """Return the words of each line below the headings."""
        lines = self.output.splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith("---")) + 1
        return [line.split() for line in lines[first : lines.index("", first)]]


def start(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks", *arguments],
        cwd=ROOT,
        env=shop_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def measure(alias: str, name: str, *arguments: str, folder: Path) -> tuple[list[list[str]], dict[str, float]]:
    """Run a benchmark, expect that it leaves nothing behind, and return its table and its figures."""
    file = folder / "figures.json"
    with Database(alias) as database:
        benchmark = Benchmark(
            name, *arguments, "--json", str(file), DATABASE_URL=database.url, AMQP_URL=settings.AMQP_URL
        )
        assert_nothing_is_left(benchmark.pid, database)
    written = json.loads(file.read_text())
    assert (written["name"], written["options"]["seed"]) == (name, 1)
    return benchmark.table(), written["figures"]


def assert_nothing_is_left(pid: int, database: Database) -> None:
    schemas = "SELECT count(*) FROM information_schema.schemata WHERE schema_name = %s"
    if database.url.startswith("postgres"):
        schemas = "SELECT count(*) FROM pg_database WHERE datname = %s"
    assert database.rows(schemas, database.name) == [(1,)]
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema IN ('public', %s)"
    assert database.rows(tables, database.name) == []
    assert database.rows(schemas, f"outbox_benchmark_{pid}") == [(0,)]
    for kind in ("classic", "quorum"):
        name = f"outbox-benchmark-{pid}-{kind}"
        with broker_channel() as channel, pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no exchange"):
            channel.exchange_declare(name, passive=True)
        assert not has_queue(pid, kind)
    assert not has_queue(pid, "quorum", "celery")


def has_queue(pid: int, kind: str, name: str = "orders.0") -> bool:
    with broker_channel() as channel:
        try:
            channel.queue_declare(f"outbox-benchmark-{pid}-{kind}-{name}", passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True


BOTH = pytest.mark.parametrize("alias", ["postgresql", "mariadb"])


@pytest.mark.slow
@BOTH
def test_the_ladder_goes_from_the_naive_loop_to_the_outbox(alias: str, tmp_path: Path):
    sizes = ["--messages=200", "--slow-messages=30", "--processed=100", "--batch-size=20", "--queues=2", "--repeats=1"]
    plot = tmp_path / "ladder.svg"
    table, figures = measure(alias, "ladder", *sizes, "--plot", str(plot), folder=tmp_path)
    assert [int(row[-3]) for row in table] == [30, 30, 200, 200, 200, 200, 200]
    steps = [" ".join(row[:-3]) for row in table]
    assert (steps[0], steps[-1]) == ("naive loop", "django_outbox")
    assert set(steps) <= set(ElementTree.parse(plot).getroot().itertext())
    assert figures["naive_ratio"] == 1
    assert figures["ours_ratio"] == pytest.approx(figures["ours_rate"] / figures["naive_rate"])


@pytest.mark.slow
def test_the_drain_is_compared_with_the_limit_of_the_same_queues(tmp_path: Path):
    sizes = ["--messages=250", "--keys=9", "--queues=3", "--batch-size=40", "--repeats=1", "--workers", "1", "2"]
    table, figures = measure("postgresql", "drain", *sizes, folder=tmp_path)
    cases = [["limit,"], ["no", "key", "1"], ["no", "key", "2"], ["9", "keys", "1"], ["9", "keys", "2"]]
    expected = [[kind, *case] for kind in ("classic", "quorum") for case in cases]
    assert [row[: len(words)] for row, words in zip(table, expected, strict=True)] == expected
    for kind in ("classic", "quorum"):
        rate = figures[f"{kind}_keyed_workers_2_rate"]
        assert figures[f"{kind}_keyed_workers_2_ratio"] == pytest.approx(rate / figures[f"{kind}_limit_rate"])


@pytest.mark.slow
def test_the_costs_compare_each_changed_setting_with_the_drain_without_it(tmp_path: Path):
    table, figures = measure("postgresql", "costs", "--messages=200", "--repeats=1", folder=tmp_path)
    assert table[0][0] == "nothing"
    assert len(table) == 13
    assert figures["1_worker_ratio"] == pytest.approx(figures["1_worker_rate"] / figures["nothing_rate"])
    assert figures["1_worker_relay_microseconds"] > 0


@pytest.mark.slow
@BOTH
def test_the_database_alone_is_compared_with_bare_sql(alias: str, tmp_path: Path):
    sizes = ["--messages=300", "--keys=7", "--batch-size=50", "--repeats=1", "--workers", "1", "2"]
    table, figures = measure(alias, "database", *sizes, folder=tmp_path)
    work = [["bare", "SQL"], ["outbox,", "no", "key"], ["outbox,", "keys"]]
    expected = [[done, workers, *what] for done in ("deleted", "kept") for workers in ("1", "2") for what in work]
    assert [row[: len(words)] for row, words in zip(table, expected, strict=True)] == expected
    for done in ("deleted", "kept"):
        rate = figures[f"keyed_{done}_workers_2_rate"]
        assert figures[f"keyed_{done}_workers_2_ratio"] == pytest.approx(rate / figures[f"bare_{done}_workers_2_rate"])


@pytest.mark.slow
def test_latency_is_measured_polled_and_woken(tmp_path: Path):
    table, figures = measure("postgresql", "latency", "--seconds=1", "--rates=50", folder=tmp_path)
    assert [row[:2] for row in table] == [["polled", "50"], ["woken", "50"]]
    for mode in ("polled", "woken"):
        assert 0 < figures[f"{mode}_50_p50_ms"] <= figures[f"{mode}_50_p95_ms"] <= figures[f"{mode}_50_p99_ms"]


@pytest.mark.slow
def test_enqueueing_is_compared_with_plain_rows(tmp_path: Path):
    sizes = ["--messages=20", "--many=300", "--writers=3", "--repeats=1"]
    table, figures = measure("postgresql", "enqueue", *sizes, folder=tmp_path)
    calls = ("create()", "enqueue()", "bulk_create()", "enqueue_many()")
    assert [row[:2] for row in table] == [[call, writers] for call in calls for writers in ("1", "3")]
    assert figures["enqueue_writers_3_rate_ratio"] == pytest.approx(1 / figures["enqueue_writers_3_cost_ratio"])


@pytest.mark.slow
@BOTH
def test_a_purge_with_an_archive_is_compared_with_one_without(alias: str, tmp_path: Path):
    sizes = ["--messages=300", "--pending=200", "--max-rows=100", "--repeats=1"]
    table, figures = measure(alias, "archive", *sizes, folder=tmp_path)
    assert [row[:2] for row in table] == [["nothing", "purge"]] * 2 + [["a", "drain"]] * 2
    assert figures["archive_alone_ratio"] == pytest.approx(figures["archive_alone_rate"] / figures["purge_alone_rate"])


@pytest.mark.slow
def test_a_relay_with_monitoring_is_compared_with_the_relay_alone(tmp_path: Path):
    table, figures = measure("postgresql", "monitoring", "--messages=200", "--repeats=1", folder=tmp_path)
    assert [row[0] for row in table] == ["nothing", "reports", "reports", "traced", "traced", "everything"]
    assert figures["nothing_ratio"] == figures["traced_messages_ratio"] == 1
    assert figures["reports_ratio"] == pytest.approx(figures["reports_rate"] / figures["nothing_rate"])
    # The allowance of spans is above the number of messages.
    assert figures["spans"] > 0


@pytest.mark.slow
@BOTH
def test_the_inbox_is_compared_with_a_bare_consumer(alias: str, tmp_path: Path):
    sizes = ["--messages=300", "--batch-size=50", "--repeats=1", "--kinds", "classic"]
    table, figures = measure(alias, "inbox", *sizes, folder=tmp_path)
    assert [row[0] for row in table] == ["classic"] * 3
    assert figures["classic_inbox_ratio"] == pytest.approx(
        figures["classic_inbox_rate"] / figures["classic_bare_pika_rate"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("alias", "publisher"), [("postgresql", "rabbitmq"), ("mariadb", "accepting")])
def test_several_relays_are_compared_with_one(alias: str, publisher: str, tmp_path: Path):
    sizes = ["--messages=300", "--keys", "7", "400", "--relays=2", "--batch-size=50", "--repeats=1"]
    table, figures = measure(alias, "scale", *sizes, "--publisher", publisher, folder=tmp_path)
    expected = [["7", "1", "300"], ["7", "2", "300"], ["400", "1", "400"], ["400", "2", "400"]]
    assert [row[:3] for row in table] == expected
    for keys in (7, 400):
        one, two = f"keys_{keys}_relays_1", f"keys_{keys}_relays_2"
        assert figures[f"{two}_ratio"] == pytest.approx(figures[f"{two}_rate"] / figures[f"{one}_rate"])
        assert figures[f"{one}_ratio"] == figures[f"{one}_least_to_most_share"] == 1
        assert 0 <= figures[f"{two}_least_to_most_share"] <= 1


@pytest.mark.slow
def test_celery_tasks_through_the_outbox_are_compared_with_plain_calls(tmp_path: Path):
    table, figures = measure("postgresql", "celery", "--calls=20", "--messages=200", "--repeats=1", folder=tmp_path)
    assert [row[0] for row in table] == ["apply_async(),", "outbox:", "outbox:", "outbox:", "outbox:"]
    assert figures["drain_ratio"] == pytest.approx(figures["drain_rate"] / figures["apply_async_rate"])


# The ladder inserts processed rows on both.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("alias", "delivered"),
    [("postgresql", {"pending": 120, "snapshot": 480, "1MiB": 120}), ("mariadb", {"backoff": 120})],
)
def test_growth_drains_each_hard_table_between_fresh_ones(alias: str, delivered: dict[str, int], tmp_path: Path):
    sizes = ["--messages=120", "--pending=400", "--backoff=300", "--repeats=1"]
    table, figures = measure(alias, "growth", *sizes, "--cases", *delivered, folder=tmp_path)
    assert [row[:2] for row in table] == [[name, str(count)] for name, count in delivered.items()]
    for name in delivered.keys() - {"1MiB"}:
        assert figures[f"{name}_ratio"] == pytest.approx(figures[f"{name}_rate"] / figures[f"{name}_fresh_rate"])
    # No fresh table has messages of this size.
    assert {"1MiB_ratio", "1MiB_fresh_rate"}.isdisjoint(figures)


def test_a_benchmark_that_is_stopped_early_leaves_nothing_behind():
    with Database("postgresql") as database:
        with start(
            "drain", "--repeats=1000", "--messages=2000", DATABASE_URL=database.url, AMQP_URL=settings.AMQP_URL
        ) as process:
            try:
                eventually(lambda: has_queue(process.pid, "quorum"), seconds=PATIENCE)
                process.terminate()
                process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
        assert process.returncode == 128 + signal.SIGTERM
        assert_nothing_is_left(process.pid, database)


def test_help_lists_every_benchmark():
    helped = Benchmark("--help").output
    assert [line.split()[0] for line in helped.splitlines() if line.startswith("    ") and line[4] != " "] == [*NAMES]


@pytest.mark.parametrize(
    ("arguments", "amqp_url", "problem"),
    [
        (("drain",), "", "Set AMQP_URL, for example: AMQP_URL=amqp://"),
        (("ladder",), settings.AMQP_URL, "Set DATABASE_URL, for example: DATABASE_URL=postgres://"),
        (("drain", "--messages=10"), "amqp://guest:guest@127.0.0.1:1/%2F", "The broker of AMQP_URL does not answer"),
    ],
    ids=["no broker", "no database server", "an unavailable broker"],
)
def test_a_missing_server_is_reported_with_the_remedy(
    arguments: tuple[str, ...], amqp_url: str, problem: str, tmp_path: Path
):
    printed = Benchmark(*arguments, code=1, DATABASE_URL=f"sqlite:///{tmp_path}/db.sqlite3", AMQP_URL=amqp_url).output
    assert problem in printed
    assert "Traceback" not in printed


def test_a_missing_folder_and_a_count_of_zero_are_refused_before_anything_is_measured(tmp_path: Path):
    folder = tmp_path / "none"
    refused = Benchmark("ladder", "--plot", str(folder / "ladder.svg"), code=2).output
    assert f"argument --plot: there is no folder {folder}" in refused
    refused = Benchmark("drain", "--json", str(folder / "drain.json"), code=2).output
    assert f"argument --json: there is no folder {folder}" in refused
    refused = Benchmark("drain", "--messages", "0", code=2).output
    assert "argument --messages: '0' is not a whole number of at least 1" in refused


def test_a_rate_counts_from_the_first_batch_or_from_a_part_of_all_messages():
    settled = [(11.0, 100), (12.0, 100), (16.0, 100), (18.0, 100)]
    report = RelayReport(began=5.0, settled=settled, confirmed={}, peak_megabytes=1.0)
    assert report.rate() == 300 / 7
    assert report.rate(after=0.75) == 100 / 2
    assert RelayReport(began=5.0, settled=[(6.0, 40)], confirmed={}, peak_megabytes=1.0).rate() == 40


def test_a_plot_shows_rates_and_factors(tmp_path: Path):
    file = tmp_path / "plot.svg"
    draw_ladder(file, "Title", {"first & slow": 1000.0, "second": 2500.0}, "footer")
    texts = [text for text in ElementTree.parse(file).getroot().itertext() if text.strip()]
    assert texts == ["Title", "first & slow", "1,000 msg/s", "second", "2,500 msg/s, 2.5 times", "footer"]


@pytest.fixture
def report() -> Report:
    return Report(
        name="sample",
        title="A sample",
        columns=["case", "msg/s", "ratio"],
        rows=[["fast", 12345.6, 1.0], ["slow one", 999, 0.08123]],
        notes=["A note."],
        figures={"slow_ratio": 0.08123},
        options={"seed": 1},
        machine={"CPUs": 2, "Python": "3.13.0"},
    )


def test_a_report_is_a_table_with_numbers_to_the_right_and_the_machine_below(report: Report):
    assert report.text().splitlines() == [
        "A sample",
        "",
        "case       msg/s   ratio",
        "--------  ------  ------",
        "fast      12,346       1",
        "slow one     999  0.0812",
        "",
        "A note.",
        "CPUs 2, Python 3.13.0",
    ]


def test_a_report_in_json_has_the_figures_as_they_were_measured(report: Report, tmp_path: Path):
    report.write_json(tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["figures"] == {"slow_ratio": 0.08123}
    assert written["rows"] == [["fast", 12345.6, 1.0], ["slow one", 999, 0.08123]]
    assert (written["name"], written["options"], written["machine"]["CPUs"]) == ("sample", {"seed": 1}, 2)


def contents(**options: Any) -> list[tuple[str, str, Any]]:
    return [(made.key, made.topic, made.payload) for made in make_messages(60, **options)]


def test_the_same_seed_makes_the_same_messages_and_another_one_others():
    assert contents(seed=1, keys=5) == contents(seed=1, keys=5)
    assert contents(seed=1, keys=5) != contents(seed=2, keys=5)


def test_messages_are_spread_over_the_topics_and_those_of_a_key_share_one():
    topics = ["a", "b", "c"]
    assert Counter(topic for _, topic, _ in contents(topics=topics)) == {"a": 20, "b": 20, "c": 20}
    pairs = {(key, topic) for key, topic, _ in contents(topics=topics, keys=6)}
    assert len(pairs) == 6
    assert {topic for _, topic in pairs} == set(topics)


@pytest.mark.django_db(databases=ALIASES, transaction=True)
def test_the_requested_number_of_messages_is_enqueued_with_any_chunk(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(messages, "CHUNK", 4)
    fill(10)
    assert [message.payload["id"] for message in OutboxMessage.objects.order_by("id")] == list(range(10))
