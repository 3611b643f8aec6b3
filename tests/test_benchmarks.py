"""The ladder and the drain: what they print and write, that they leave nothing behind; their report and messages."""

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
from benchmarks import messages, plot
from benchmarks.messages import fill, make_messages
from benchmarks.report import Report
from django.conf import settings
from django.core.management import CommandError

from django_outbox import OutboxMessage
from tests.conftest import ALIASES
from tests.messages_tools import eventually
from tests.processes import PATIENCE, PROJECT, Database, broker_channel, shop_environment

MARIADB = "mariadb"


class Benchmark:
    """A run of `manage.py benchmark` to its end."""

    def __init__(self, *arguments: str, code: int = 0, **environment: str) -> None:
        with subprocess.Popen(
            [sys.executable, "manage.py", "benchmark", *arguments],
            cwd=PROJECT,
            env=shop_environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            self.output = process.communicate(timeout=PATIENCE)[0]
            self.pid = process.pid
        assert process.returncode == code, self.output

    def table(self) -> list[str]:
        """Return the lines below the headings."""
        lines = self.output.splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("---")) + 1
        return lines[start : lines.index("", start)]


def assert_nothing_is_left(pid: int, database: Database, kinds: tuple[str, ...]) -> None:
    schemas = "SELECT count(*) FROM information_schema.schemata WHERE schema_name = %s"
    if database.url.startswith("postgres"):
        schemas = "SELECT count(*) FROM pg_database WHERE datname = %s"
    assert database.rows(schemas, database.name) == [(1,)]
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema IN ('public', %s)"
    assert database.rows(tables, database.name) == []
    assert database.rows(schemas, f"outbox_benchmark_{pid}") == [(0,)]
    for kind in kinds:
        name = f"outbox-benchmark-{pid}-{kind}"
        with broker_channel() as channel, pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no exchange"):
            channel.exchange_declare(name, passive=True)
        assert not has_queue(pid, kind)


def has_queue(pid: int, kind: str) -> bool:
    with broker_channel() as channel:
        try:
            channel.queue_declare(f"outbox-benchmark-{pid}-{kind}-orders.0", passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True


@pytest.mark.slow
@pytest.mark.parametrize("alias", ["postgresql", MARIADB])
def test_the_ladder_goes_from_the_naive_loop_to_the_outbox(alias: str, tmp_path: Path):
    figures_file, plot_file = tmp_path / "ladder.json", tmp_path / "ladder.svg"
    sizes = {"messages": 200, "slow-messages": 30, "processed": 100, "batch-size": 20, "queues": 2, "repeats": 1}
    options = [text for name, number in sizes.items() for text in (f"--{name}", str(number))]
    with Database(alias) as database:
        ladder = Benchmark(
            "ladder", *options, "--seed", "7", "--json", str(figures_file), "--plot", str(plot_file),
            DATABASE_URL=database.url, AMQP_URL=settings.AMQP_URL,
        )  # fmt: skip
        assert_nothing_is_left(ladder.pid, database, ("quorum",))
    steps = ["naive loop", "index", "batched publish", "batched settle", "2 workers", "pipelined confirms"]
    steps.append("django_outbox")
    rows = ladder.table()
    assert [row[:19].strip() for row in rows] == steps
    assert [int(row[19:].split()[0]) for row in rows] == [30, 30, 200, 200, 200, 200, 200]
    assert ("MariaDB" if alias == MARIADB else "PostgreSQL") in ladder.output.splitlines()[-1]
    assert "RabbitMQ" in ladder.output.splitlines()[-1]

    written = json.loads(figures_file.read_text())
    assert written["options"]["seed"] == 7
    assert written["options"]["slow_messages"] == 30
    figures = written["figures"]
    slugs = ["naive", "index", "batched_publish", "batched_settle", "workers", "pipelined", "ours"]
    parts = ["rate", "ratio", "claim_ms", "publish_ms", "settle_ms"]
    assert sorted(figures) == sorted(f"{slug}_{part}" for slug in slugs for part in parts)
    assert min(figures.values()) > 0
    assert figures["naive_ratio"] == 1
    assert figures["ours_ratio"] == pytest.approx(figures["ours_rate"] / figures["naive_rate"])

    root = ElementTree.parse(plot_file).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [text.strip() for text in root.itertext()]
    assert set(steps) <= set(texts)


@pytest.mark.slow
@pytest.mark.parametrize("alias", ["postgresql", MARIADB])
def test_the_drain_is_set_beside_the_limit_of_the_same_queues(alias: str, tmp_path: Path):
    kinds = ("quorum",) if alias == MARIADB else ("classic", "quorum")
    file = tmp_path / "drain.json"
    sizes = {"messages": 250, "size": 100, "keys": 9, "queues": 3, "batch-size": 40, "repeats": 1}
    options = [text for name, number in sizes.items() for text in (f"--{name}", str(number))]
    with Database(alias) as database:
        drain = Benchmark(
            "drain", *options, "--workers", "1", "2", "--kinds", *kinds, "--json", str(file),
            DATABASE_URL=database.url, AMQP_URL=settings.AMQP_URL,
        )  # fmt: skip
        assert_nothing_is_left(drain.pid, database, kinds)
    cases = [["limit,"], ["no", "key", "1"], ["no", "key", "2"], ["9", "keys", "1"], ["9", "keys", "2"]]
    expected = [[kind, *case] for kind in kinds for case in cases]
    assert [row.split()[: len(words)] for row, words in zip(drain.table(), expected, strict=True)] == expected

    written = json.loads(file.read_text())
    assert written["options"]["workers"] == [1, 2]
    figures = written["figures"]
    assert min(figures.values()) > 0
    for kind in kinds:
        limit = figures[f"{kind}_limit_rate"]
        for case in ("unkeyed_workers_1", "unkeyed_workers_2", "keyed_workers_1", "keyed_workers_2"):
            rate = figures[f"{kind}_{case}_rate"]
            assert figures[f"{kind}_{case}_ratio"] == pytest.approx(rate / limit)
        assert {f"{kind}_best_ratio", f"{kind}_keyed_to_unkeyed_ratio"} <= set(figures)


def test_a_benchmark_that_is_ended_early_leaves_nothing_behind():
    with Database("postgresql") as database:
        with subprocess.Popen(
            [sys.executable, "manage.py", "benchmark", "drain", "--repeats", "1000", "--messages", "2000"],
            cwd=PROJECT,
            env=shop_environment(DATABASE_URL=database.url, AMQP_URL=settings.AMQP_URL),
            stderr=subprocess.DEVNULL,
        ) as process:
            eventually(lambda: has_queue(process.pid, "quorum"), PATIENCE)
            process.terminate()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()
        assert process.returncode == 128 + signal.SIGTERM
        assert_nothing_is_left(process.pid, database, ("quorum", "classic"))


@pytest.mark.parametrize(
    ("arguments", "amqp_url", "problem"),
    [
        (("drain",), "", "Set AMQP_URL, for example: AMQP_URL=amqp://"),
        (("ladder",), settings.AMQP_URL, "Set DATABASE_URL, for example: DATABASE_URL=postgres://"),
        (("drain", "--messages=10"), "amqp://guest:guest@127.0.0.1:1/%2F", "The broker of AMQP_URL does not answer"),
    ],
    ids=["no broker", "no database server", "a broker that is away"],
)
def test_what_is_missing_is_told_with_the_remedy(
    arguments: tuple[str, ...], amqp_url: str, problem: str, tmp_path: Path
):
    said = Benchmark(*arguments, code=1, DATABASE_URL=f"sqlite:///{tmp_path}/db.sqlite3", AMQP_URL=amqp_url).output
    assert problem in said
    assert "Traceback" not in said


def test_a_file_that_cannot_be_written_and_a_count_of_nothing_are_refused_before_anything_is_measured(tmp_path: Path):
    said = Benchmark("ladder", "--plot", str(tmp_path / "none" / "ladder.svg"), code=2).output
    assert f"argument --plot: there is no folder {tmp_path}/none" in said
    said = Benchmark("drain", "--json", str(tmp_path / "none" / "drain.json"), code=2).output
    assert f"argument --json: there is no folder {tmp_path}/none" in said
    said = Benchmark("drain", "--messages", "0", code=2).output
    assert "argument --messages: '0' is not a whole number of at least 1" in said


def test_a_plot_without_matplotlib_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    plot.require_matplotlib()
    monkeypatch.setattr(plot, "find_spec", lambda _name: None)
    with pytest.raises(CommandError, match="pip install matplotlib"):
        plot.require_matplotlib()


def test_a_plot_of_the_same_figures_is_the_same_file(tmp_path: Path):
    files = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for file in files:
        plot.draw_ladder(file, "Title", ["first", "second"], [1000.0, 2500.0], "footer")
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "2,500 msg/s, 2.5 times" in files[0].read_text()


# The report


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


# The messages


def contents(**options: Any) -> list[tuple[str, str, Any]]:
    return [(made.key, made.topic, made.payload) for made in make_messages(60, **options)]


def test_the_same_seed_makes_the_same_messages_and_another_one_others():
    assert contents(seed=1, keys=5) == contents(seed=1, keys=5)
    assert contents(seed=1, keys=5) != contents(seed=2, keys=5)


def test_messages_are_spread_over_the_topics_and_those_of_a_key_have_one():
    topics = ["a", "b", "c"]
    assert Counter(topic for _, topic, _ in contents(seed=1, topics=topics)) == {"a": 20, "b": 20, "c": 20}
    pairs = {(key, topic) for key, topic, _ in contents(seed=1, topics=topics, keys=6)}
    assert len(pairs) == 6
    assert {topic for _, topic in pairs} == set(topics)


@pytest.mark.django_db(databases=ALIASES, transaction=True)
def test_as_many_messages_are_enqueued_as_were_asked_for_whatever_the_chunk(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(messages, "CHUNK", 4)
    fill(10, seed=1)
    assert [message.payload["id"] for message in OutboxMessage.objects.order_by("id")] == list(range(10))
