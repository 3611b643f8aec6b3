"""A benchmark's report: a table of ratios measured in one run, and the machine; the same as JSON."""

import json
import os
import platform
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.db import connection

from tests.benchmarks.raw_amqp import RawConnection

PACKAGES = ("django-transactional-outbox", "psycopg", "mysqlclient", "pika")


@dataclass
class Report:
    """The result of one benchmark; `figures` is for programs, and a figure whose name ends in `_ratio` is a ratio."""

    title: str
    columns: Sequence[str]
    rows: list[list[Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
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
        path.write_text(json.dumps(asdict(self), indent=2, default=str) + "\n")


def read_machine() -> dict[str, Any]:
    """Return the machine and the versions of everything that was measured."""
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
    if settings.AMQP_URL:
        with closing(RawConnection(settings.AMQP_URL)) as broker:
            found["RabbitMQ"] = broker.server_version
    return found


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
