"""The parts of a soak that need no server: its folder, the count of arrivals, the verdict and the picture."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.faults.soak.consumer import Arrivals, percentile
from tests.faults.soak.keeping import Folder, identity
from tests.faults.soak.picture import CHARTS, draw
from tests.faults.soak.report import Sample, comparable, report, trend, verdict
from tests.faults.soak.run import Clock
from tests.support.children import SuiteError, wait_until


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def sample(seconds: float, *events: str, memory: float = 50, lost: int = 0, **more: Any) -> Sample:
    return {
        "seconds": seconds,
        "events": events,
        "committed": 1000,
        "arrived": 1000 - lost,
        "due": 0,
        "latency": {"messages": 20, "p50": 0.01, "p99": 0.05},
        "memory": {"relay-0": 48 * 2**20, "relay-2": memory * 2**20, "consumer": 15 * 2**20, "backends": 2**24},
        "sizes": {"messages": 2**20, "index": 2**19},
        "rows": {"live": 20_000, "dead": 500, "autovacuums": 3},
        "archive": {"files": 2, "bytes": 2**20},
        "processor": {"relay-0": 1.0, "relay-2": 1.5},
        "load": 1.0,
        **more,
    }


def hours(number: int, growth: float) -> list[Sample]:
    """Return samples of some hours in which the memory of a relay grows by so many MB an hour."""
    return [sample(minute * 60, memory=50 + growth * minute / 60) for minute in range(number * 60)]


class TestTrend:
    def test_names_a_figure_that_grows_in_spite_of_noise(self):
        assert trend([10, 12, 11, 13, 15, 14, 17, 16], 0.1) == pytest.approx(15.5 / 11.5 - 1)

    @pytest.mark.parametrize(
        "medians", [[10, 12, 11, 12, 10, 12, 11, 10], [10, 10.1, 10.2, 10.3], [1, 2, 3], [9, 8, 7, 6]]
    )
    def test_is_none_in_noise_small_growth_few_periods_or_a_fall(self, medians: list[float]):
        assert trend(medians, 0.1) == 0


class TestVerdict:
    def test_names_the_relay_that_grows(self):
        assert any(line.startswith("kept relay MB grows by") for line in verdict(hours(8, 2), 3600))

    def test_is_good_in_steady_hours(self):
        assert verdict(hours(8, 0), 3600)[-1] == "No trend in 8 comparable periods."

    def test_compares_peaks_of_dead_rows_because_samples_drift_against_autovacuum(self):
        samples = [
            sample(minute * 60, rows={"live": 1, "dead": 10_000 if minute % 5 == 0 else 500 + 10 * minute})
            for minute in range(480)
        ]
        assert verdict(samples, 3600)[-1] == "No trend in 8 comparable periods."

    def test_compares_no_hours_with_that_of_the_start_or_the_backlog(self):
        samples = hours(4, 0)
        samples[60] = sample(3600, "backlog begins, relays stop")
        assert {each["seconds"] // 60 for each in comparable(samples)} == {*range(25, 60), *range(120, 240)}

    def test_has_the_messages_that_are_lost_and_the_processes_that_ended(self):
        samples = [sample(60, "relay-1 ended by itself with 1"), sample(120, "stopped", lost=3, drained=True)]
        assert " 3 lost" in verdict(samples, 3600)[0]
        assert verdict(samples, 3600)[1] == "relay-1 ended by itself with 1"

    def test_calls_messages_lost_only_after_waiting_for_them(self):
        assert " 3 on their way" in verdict([sample(60, lost=3)], 3600)[0]

    def test_the_table_has_a_row_for_each_period(self):
        assert [line.split()[0] for line in report(hours(3, 0), 3600).splitlines()[1:4]] == ["0.00", "1.00", "2.00"]


def test_the_picture_has_each_chart_and_the_events():
    samples = hours(3, 1)
    samples[90] = sample(5400, "broker restart")
    tree = ElementTree.fromstring(draw(samples))
    texts = ["".join(each.itertext()) for each in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert all(any(text.startswith(chart.title) for text in texts) for chart in CHARTS)
    assert "broker restart" in texts
    lines = [*tree.iter("{http://www.w3.org/2000/svg}polyline")]
    assert len(lines) == sum(len(chart.lines) for chart in CHARTS)
    assert all(each.get("points") for each in lines)


def test_the_broker_restarts_each_hour_and_never_at_the_time_of_a_deployment():
    clock = Clock(end=24 * 3600)
    restarts = [second for second in range(1, 24 * 3600) if clock.restarts(second) > clock.restarts(second - 1)]
    assert len(restarts) == 24
    assert all(second % clock.deployment for second in restarts)


class TestArrivals:
    def test_each_message_counts_once_also_for_the_next_consumer(self, tmp_path: Path):
        path = tmp_path / "arrivals.json"
        arrivals = Arrivals(path)

        def arrive(n: int, *, keyed: bool = True, redelivered: bool = False) -> None:
            payload = {"counter": "key-1" if keyed else "writer-0", "n": n, "at": 100.0}
            arrivals.note(payload, 100.25, keyed=keyed, redelivered=redelivered)

        for n in (0, 1, 3, 2):
            arrive(n)
        arrive(1, keyed=False)
        arrivals.save()
        arrivals = Arrivals(path)
        arrive(3)
        arrive(0, redelivered=True)
        arrive(4)
        arrive(0, keyed=False)
        assert arrivals.figures == {"arrived": 7, "out_of_order": 1, "sent_again": 1, "redelivered": 1}
        assert arrivals.counters == {"key-1": [5, set()], "writer-0": [2, set()]}
        assert percentile(arrivals.latencies, 0.5) == pytest.approx(0.25, rel=0.1)


class TestFolder:
    def test_must_be_empty_at_the_beginning(self, tmp_path: Path):
        (tmp_path / "file").touch()
        with pytest.raises(SuiteError, match="--resume"):
            Folder(tmp_path, resume=False)

    def test_cannot_be_resumed_without_a_soak(self, tmp_path: Path):
        with pytest.raises(SuiteError, match="no soak to resume"):
            Folder(tmp_path, resume=True)

    def test_is_used_by_one_process_at_a_time(self, tmp_path: Path):
        with Folder(tmp_path, resume=False), pytest.raises(SuiteError, match="another process"):
            Folder(tmp_path, resume=True)

    def test_continues_after_a_crash_in_the_middle_of_a_line(self, tmp_path: Path):
        with Folder(tmp_path, resume=False) as first:
            port = first.port("postgresql")
            first.add({"seconds": 61.5})
        samples = tmp_path / "samples.jsonl"
        samples.write_text(samples.read_text() + '{"seconds": 12')
        with Folder(tmp_path, resume=True) as second:
            assert second.seconds == 61.5
            assert second.port("postgresql") == port
        assert [json.loads(line) for line in samples.read_text().splitlines()] == [{"seconds": 61.5}]

    def test_ends_its_processes(self, tmp_path: Path):
        with Folder(tmp_path, resume=False) as folder:
            child = folder.start("sleeper", ["sleep", "60"])
        assert child.code is not None

    def test_ends_what_a_killed_soak_left_and_no_other_process(
        self, tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
    ):
        script = (
            "import os, signal, sys; from pathlib import Path; from tests.faults.soak.keeping import Folder\n"
            "Folder(Path(sys.argv[1]), resume=False).start('sleeper', ['sleep', '60'])\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=30)
        pids = tmp_path / "pids"
        left = int(pids.read_text().split()[0])
        assert identity(left)
        # The number of an earlier process belongs to another one by now.
        pids.write_text(f"{pids.read_text()}{sleeper.pid} 12345 {identity(os.getpid()).split()[1]}\n")
        with Folder(tmp_path, resume=True):
            wait_until(lambda: is_gone(left), 30, "the end of the process")
            assert sleeper.poll() is None


def is_gone(pid: int) -> bool:
    """Whether a process has ended, also if its parent has not noticed it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
