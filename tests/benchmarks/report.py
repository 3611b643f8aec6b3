"""A benchmark's report: a table of ratios measured in one run, and the machine; the same as JSON."""

import json
import os
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import django
from django.db import connection

from django_outbox.utils.text import duration
from tests.benchmarks.measuring import Run

CaseT = TypeVar("CaseT", bound=Hashable)
ResultT = TypeVar("ResultT")

PACKAGES = ("django-transactional-outbox", "psycopg", "mysqlclient", "pika", "redis", "nats-py", "confluent-kafka")


@dataclass
class Report:
    title: str
    columns: Sequence[str]
    rows: list[list[Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Return the table, with notes and the machine below it."""
        cells = [list(self.columns), *([_cell(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]
        numeric = [all(isinstance(row[column] or 0, int | float) for row in self.rows) for column in range(len(widths))]
        lines = [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, numeric, strict=True)
            ).rstrip()
            for row in cells
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        machine = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        return "\n".join([self.title, "", *lines, "", *self.notes, machine])

    def write_json(self, path: Path) -> None:
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        path.write_text(json.dumps(asdict(self) | {"rows": rows}, indent=2) + "\n")


def measure_all(sequence: Sequence[CaseT], measure: Callable[[CaseT], ResultT]) -> dict[CaseT, list[ResultT]]:
    """Measure cases in this order, show each result as soon as it is there, and return the results of each.

    Pass rounds (`cases * repeats`), so that anything that disturbs the machine affects all cases alike.
    """
    results: dict[CaseT, list[ResultT]] = defaultdict(list)
    began, total = time.monotonic(), len(sequence)
    for number, case in enumerate(sequence, 1):
        result = measure(case)
        results[case].append(result)
        found = f": {result.rate:,.0f} msg/s" if isinstance(result, Run) else ""
        left = duration((time.monotonic() - began) / number * (total - number))
        sys.stderr.write(f"{number}/{total}  {case}{found}" + (f"  (about {left} left)\n" if number < total else "\n"))
        sys.stderr.flush()
    return results


def compare(
    title: str,
    sequence: Sequence[CaseT],
    measure: Callable[[CaseT], Run],
    base: Callable[[CaseT], CaseT] | None = None,
    *,
    ratio: str = "ratio",
) -> Report:
    """Measure cases, and return a report with a row for each: the medians of its rate, and of its other figures.

    Args:
        sequence: the cases as `measure_all` takes them; `str` names each.
        base: returns the case that a case is compared with; by default it is the first.
        ratio: the heading of the ratio of the two rates.
    """
    runs = measure_all(sequence, measure)
    rates = {case: median(run.rate for run in found) for case, found in runs.items()}
    # The case with the most figures has all of them in their order.
    more = max((found[0].figures for found in runs.values()), key=len)
    report = Report(title, ["case", "messages", "msg/s", ratio, *more])
    for case, rate in rates.items():
        figures = {name: [run.figures[name] for run in runs[case] if name in run.figures] for name in more}
        row = [str(case), runs[case][0].messages, rate, rate / rates[base(case) if base else sequence[0]]]
        report.rows.append(row + [median(found) if found else "" for found in figures.values()])
    return report


def read_machine() -> dict[str, Any]:
    found: dict[str, Any] = {
        "CPUs": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "Django": django.get_version(),
    }
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    connection.ensure_connection()
    found[connection.display_name] = ".".join(map(str, connection.get_database_version()))
    return found


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
