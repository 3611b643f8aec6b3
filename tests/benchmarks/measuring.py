"""The loop of every benchmark."""

import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

CaseT = TypeVar("CaseT", bound=Hashable)
ResultT = TypeVar("ResultT")


class BenchmarkError(Exception):
    """The benchmark cannot run, or its figures would mean nothing. The text names the cause or the remedy."""


def measure_all(cases: Sequence[CaseT], measure: Callable[[CaseT], ResultT]) -> dict[CaseT, list[ResultT]]:
    """Measure cases in this order, and return the results of each.

    Pass rounds (`cases * repeats`), so that anything that disturbs the machine affects all cases alike.
    """
    results: dict[CaseT, list[ResultT]] = defaultdict(list)
    try:
        for number, case in enumerate(cases):
            _show(f"  measuring {number + 1}/{len(cases)}")
            results[case].append(measure(case))
    finally:
        _show("")
    return results


def _show(line: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{line}")
        sys.stderr.flush()
