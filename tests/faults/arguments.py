"""What the command lines of the suite have in common."""

import argparse
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Protocol, TypeVar

from tests.support.children import SuiteError


class Result(Protocol):
    """The result of a run."""

    @property
    def good(self) -> bool:
        """Whether the run finished and every promise was kept."""


ResultT = TypeVar("ResultT", bound=Result)


def whole(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def run(execute: Callable[[], ResultT], describe: Callable[[ResultT], str]) -> int:
    """Run and print the result; return 0 if every promise was kept, 1 if one was broken, 2 if the suite itself failed.

    SIGTERM and SIGHUP end it like Ctrl-C, so that nothing is left behind.
    """
    _interrupt_on_signals()
    try:
        result = execute()
    except SuiteError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("stopped; nothing is left behind\n")
        return 130
    sys.stdout.write(f"{describe(result)}\n")
    return 0 if result.good else 1


def _interrupt_on_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
