"""`benchmark costs`: the drain with one thing changed, beside that with none, and whose processor it uses."""

import argparse
import random
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from statistics import median
from typing import Any

from django.db import connection
from shop.terminal import ProgressBar

from benchmarks.arguments import add_numbers
from benchmarks.messages import fill
from benchmarks.processors import PARTS
from benchmarks.queues import Queues, topics
from benchmarks.relays import Drained, timed_drain
from benchmarks.report import Report
from benchmarks.tables import empty, save
from benchmarks.workspace import require_broker, require_server

OPTIONS = ("messages", "keys", "repeats")

QUEUES = 4


@dataclass(frozen=True)
class Case:
    """A drain.

    Args:
        name: what is changed.
        slug: the same as a name in JSON.
        kind: of queues, `quorum` or `classic`.
        queues: how many.
        keyed: whether messages have keys.
        size: bytes of a payload.
        workers: threads of the relay.
        batch_size: messages in a claim.
        publisher: further options of the publisher.
        settings: further settings of `OUTBOX`.
    """

    name: str
    slug: str
    kind: str = "quorum"
    queues: int = QUEUES
    keyed: bool = False
    size: int = 250
    workers: int = 2
    batch_size: int = 2000
    publisher: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """The name under which its messages are saved."""
        return f"{'keyed' if self.keyed else 'unkeyed'}_{self.size}_{self.queues}"


NOTHING = Case("nothing", "nothing")

CASES = (
    NOTHING,
    replace(NOTHING, name="1 worker", slug="workers_1", workers=1),
    replace(NOTHING, name="4 workers", slug="workers_4", workers=4),
    replace(NOTHING, name="batches of 100", slug="batch_100", batch_size=100),
    replace(NOTHING, name="batches of 500", slug="batch_500", batch_size=500),
    replace(NOTHING, name="batches of 1,000", slug="batch_1000", batch_size=1000),
    replace(NOTHING, name="batches of 5,000", slug="batch_5000", batch_size=5000),
    replace(NOTHING, name="keys", slug="keys", keyed=True),
    replace(NOTHING, name="RETENTION of zero", slug="retention_0", settings={"RETENTION": timedelta(0)}),
    replace(NOTHING, name="classic queues", slug="classic", kind="classic"),
    replace(NOTHING, name="1 queue", slug="queues_1", queues=1),
    replace(NOTHING, name="no confirms", slug="confirms_off", publisher={"dangerously_disable_confirms": True}),
    replace(NOTHING, name="payloads of 2,500 bytes", slug="size_2500", size=2500),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_numbers(
        parser,
        messages=(50_000, "A case."),
        keys=(1000, "Keys of the keyed messages."),
        repeats=(7, "Rounds, of which the median of each case counts."),
    )


def run(options: dict[str, Any]) -> Report:
    """Measure round after round, each in another order."""
    require_server()
    url = require_broker()
    for case in {case.table: case for case in CASES}.values():
        empty()
        keys = options["keys"] if case.keyed else 0
        fill(options["messages"], seed=options["seed"], size=case.size, keys=keys, topics=topics(case.queues))
        save(case.table)
    runs: dict[str, list[Drained]] = defaultdict(list)
    with ExitStack() as stack:
        queues = {kind: stack.enter_context(Queues(url, kind, QUEUES)) for kind in ("quorum", "classic")}
        bar = stack.enter_context(ProgressBar("  measuring", options["repeats"] * len(CASES)))
        order = random.Random(options["seed"])  # noqa: S311 - repeatable, and no secret
        for _ in range(options["repeats"]):
            # What a drain leaves behind in the broker is not always to burden the same one.
            for case in order.sample(CASES, len(CASES)):
                drained = timed_drain(
                    url,
                    queues[case.kind],
                    case.table,
                    workers=case.workers,
                    batch_size=case.batch_size,
                    publisher=case.publisher,
                    **case.settings,
                )
                runs[case.slug].append(drained)
                bar.advance()
    return _report(options, runs)


def _report(options: dict[str, Any], runs: Mapping[str, list[Drained]]) -> Report:
    report = Report(
        name="costs",
        title=f"The drain from {connection.display_name} to quorum queues, with one thing changed",
        columns=["changed", "msg/s", "ratio", *(f"{part} µs" for part in PARTS)],
    )
    plain = _rate(runs[NOTHING.slug])
    for case in CASES:
        rate = _rate(runs[case.slug])
        report.figures |= {f"{case.slug}_rate": rate, f"{case.slug}_ratio": rate / plain}
        costs: list[float | str] = []
        for part in PARTS:
            found = [run.processor[part] * 1e6 / run.messages for run in runs[case.slug] if part in run.processor]
            costs.append(median(found) if found else "")
            if found:
                report.figures[f"{case.slug}_{part}_microseconds"] = median(found)
        report.rows.append([case.name, rate, rate / plain, *costs])
    report.notes = [
        f"{options['messages']:,} messages a case, of 250 bytes and without keys, over {QUEUES} quorum queues, in "
        f"batches of {NOTHING.batch_size:,} by {NOTHING.workers} workers, unless another figure is told; "
        f"{options['keys']:,} keys where there are any; median of {options['repeats']}.",
        "µs: of a processor for a message, of what runs on this machine.",
    ]
    return report


def _rate(runs: list[Drained]) -> float:
    return median(run.rate for run in runs)
