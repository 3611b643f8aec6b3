"""The table of a soak by period, and its verdict."""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Sample = Mapping[str, Any]

Figure = Callable[[Sample], float | None]
"""Returns a figure of a sample, or None where there is none."""

SETTLING = 1500
"""Seconds after the start in which the table grows: until the first messages have reached their retention."""

AFTER_RESUME = 300
"""Seconds after each start in which memory grows, because caches fill."""

AFTER_BACKLOG = 3600
"""Seconds after a backlog begins that are not compared with others: delivery, retention and vacuum."""

RISING = 0.75
"""Share of the pairs of periods of which the later one is higher, from which on it is a trend."""

MB = 1024 * 1024

PEAK = "peak dead rows"

SERIES: Mapping[str, tuple[Figure, float]] = {
    "p50 ms": (lambda each: _milliseconds(each, "p50"), 0.25),
    "p99 ms": (lambda each: _milliseconds(each, "p99"), 0.5),
    "kept relay MB": (lambda each: memory(each, "relay-2"), 0.05),
    "consumer MB": (lambda each: memory(each, "consumer"), 0.05),
    "backends MB": (lambda each: memory(each, "backends"), 0.1),
    "table MB": (lambda each: table_size(each) / MB, 0.1),
    "indexes MB": (lambda each: index_size(each) / MB, 0.1),
    PEAK: (lambda each: each["rows"]["dead"], 0.5),
    "relays' cpu s": (lambda each: sum(value for name, value in each["processor"].items() if "relay" in name), 0.25),
    # That of the machine: no fault of the outbox, and shown because latency depends on it.
    "load": (lambda each: each["load"], math.inf),
}
"""The figures of the table, each with the share by which it may grow."""


def _milliseconds(sample: Sample, name: str) -> float | None:
    seconds = sample["latency"][name]
    return None if seconds is None else seconds * 1000


def memory(sample: Sample, name: str) -> float | None:
    """Return the memory of a process in MB; None if it did not run."""
    found: int = sample["memory"].get(name, 0)
    return found / MB or None


def table_size(sample: Sample) -> int:
    return int(next(iter(sample["sizes"].values())))


def index_size(sample: Sample) -> int:
    sizes: Mapping[str, int] = sample["sizes"]
    return sum(sizes.values()) - table_size(sample)


def read_samples(path: Path) -> list[Sample]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def trend(medians: Sequence[float], tolerance: float) -> float:
    """Return by which share a figure grows from the first to the last half of its periods; 0 if it is no trend."""
    if len(medians) < 4:
        return 0.0
    half = len(medians) // 2
    first, last = median(medians[:half]), median(medians[-half:])
    pairs = [later > earlier for earlier, later in itertools.combinations(medians, 2)]
    if sum(pairs) < RISING * len(pairs) or last <= first * (1 + tolerance):
        return 0.0
    return last / first - 1 if first else float("inf")


def comparable(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples of steady hours: not those after a start, or after the backlog."""
    found = []
    quiet = float(SETTLING)
    for each in samples:
        if {"started", "resumed"} & {*each["events"]}:
            quiet = max(quiet, each["seconds"] + AFTER_RESUME)
        if any("backlog" in event for event in each["events"]):
            quiet = max(quiet, each["seconds"] + AFTER_BACKLOG)
        if each["seconds"] >= quiet and "drained" not in each:
            found.append(each)
    return found


def by_period(samples: Sequence[Sample], period: float, name: str) -> dict[int, float]:
    """Return a figure by number of the period: its median, or its peak for the dead rows.

    They rise and fall between two runs of autovacuum, which looks once a minute, as the samples do: their median
    shows how far apart the two happen to be.
    """
    figure, _ = SERIES[name]
    summarize = max if name == PEAK else median
    found = {}
    for number, group in itertools.groupby(samples, lambda each: int(each["seconds"] // period)):
        values = [value for each in group if (value := figure(each)) is not None]
        if values:
            found[number] = summarize(values)
    return found


def report(samples: Sequence[Sample], period: float) -> str:
    """Return the table by period of so many seconds, and the verdict."""
    columns = {name: by_period(samples, period, name) for name in SERIES}
    lines = ["from hour" + "".join(f"{name:>15}" for name in columns)]
    for number in sorted(set().union(*columns.values())):
        cells = [f"{column[number]:>15,.1f}" if number in column else " " * 15 for column in columns.values()]
        lines.append(f"{number * period / 3600:>9.2f}" + "".join(cells))
    return "\n".join([*lines, "", *verdict(samples, period)])


def verdict(samples: Sequence[Sample], period: float) -> list[str]:
    """Return the promises that were kept or broken, and the figures that grow."""
    last = samples[-1]
    missing = last["committed"] - last.get("arrived", 0)
    state = "lost" if last.get("drained") else "on their way"
    lines = [
        f"{last['committed']:,} committed in {last['seconds'] / 3600:.2f} hours, {missing:,} {state}, "
        f"{last.get('out_of_order', 0):,} out of order within a key, "
        f"{last.get('sent_again', 0):,} sent again by relays, {last.get('redelivered', 0):,} redelivered by the broker."
    ]
    lines += [event for each in samples for event in each["events"] if " ended " in event]
    steady = comparable(samples)
    growing = []
    for name, (_, tolerance) in SERIES.items():
        values = [*by_period(steady, period, name).values()]
        if share := trend(values, tolerance):
            growing.append(f"{name} grows by {share:.0%} over {len(values)} comparable periods.")
    periods = len({int(each["seconds"] // period) for each in steady})
    if periods < 4:
        return [*lines, f"Only {periods} comparable periods: too few for a trend."]
    return [*lines, *(growing or [f"No trend in {periods} comparable periods."])]
