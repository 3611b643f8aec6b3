"""What a benchmark prints: a table of ratios measured in one run, and what it was measured on; the same as JSON."""

import json
import os
import platform
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.db import connection

from benchmarks.raw_amqp import RawConnection

PACKAGES = ("django-transactional-outbox", "psycopg", "mysqlclient", "pika")


@dataclass
class Report:
    """The result of one benchmark.

    Args:
        name: the benchmark, as in `manage.py benchmark NAME`.
        title: what was measured, in one line.
        columns: the headings of the table.
        rows: one list of cells a row: text, or a number, which is shown with as many digits as it needs.
        notes: what a reader must know, a sentence each.
        figures: the same for programs; every value is a number, a ratio where its name ends in `_ratio`.
        options: what it was called with, the seed among them.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: list[list[Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Return the table, with the machine below it."""
        cells = [list(self.columns), *([_cell(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]
        numeric = [all(isinstance(row[column] or 0, int | float) for row in self.rows) for column in range(len(widths))]
        lines = [self.title, ""]
        for number, row in enumerate(cells):
            parts = [
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, numeric, strict=True)
            ]
            lines.append("  ".join(parts).rstrip())
            if number == 0:
                lines.append("  ".join("-" * width for width in widths))
        lines += ["", *self.notes]
        lines.append(", ".join(f"{name} {value}" for name, value in self.machine.items()))
        return "\n".join(lines)

    def write_json(self, path: Path) -> None:
        """Write everything to a file."""
        path.write_text(json.dumps(asdict(self), indent=2, default=str) + "\n")


def read_machine() -> dict[str, Any]:
    """Return the machine and the versions of what runs on it; it asks the database for its own."""
    found: dict[str, Any] = {
        "CPUs": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "Django": django.get_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    connection.ensure_connection()
    found[connection.display_name] = ".".join(map(str, connection.get_database_version()))
    if settings.AMQP_URL:
        found["RabbitMQ"] = _broker_version()
    return found


def _broker_version() -> str:
    with closing(RawConnection(settings.AMQP_URL)) as broker:
        return str(broker.server_properties["version"])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
