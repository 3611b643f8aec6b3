"""The soak from the command line: `python -m tests.faults soak --help`."""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from tests.faults.soak.keeping import Folder
from tests.faults.soak.picture import draw
from tests.faults.soak.report import read_samples, report
from tests.faults.soak.run import Clock, Soak
from tests.support.children import SuiteError


def main(arguments: list[str]) -> int:
    """Run a piece of a soak, or draw its picture; return 0, or 2 if the soak itself failed."""
    options = parser().parse_args(arguments)
    folder = options.folder.resolve()
    if not options.picture:
        try:
            with Folder(folder, resume=options.resume) as kept:
                soak = Soak(kept, Clock(end=options.hours * 3600, backlog=options.backlog_hour * 3600))

                def stop(_number: int, _frame: FrameType | None) -> None:
                    soak.stopping = True

                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, stop)
                soak.execute()
        except SuiteError as error:
            sys.stderr.write(f"{error}\n")
            return 2
    samples = read_samples(folder / "samples.jsonl")
    picture = folder / "picture.svg"
    picture.write_text(draw(samples))
    sys.stdout.write(f"{report(samples, options.period * 60)}\nThe picture is {picture}.\n")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    found = argparse.ArgumentParser(
        prog="python -m tests.faults soak", description="Run an outbox for a day, in pieces that can be resumed."
    )
    found.add_argument("folder", type=Path, help="data of the servers, samples and picture; empty at the beginning")
    found.add_argument("--hours", type=float, default=24, help="duration of all pieces together (%(default)s)")
    found.add_argument("--backlog-hour", type=float, default=12, help="hour of the backlog (%(default)s)")
    found.add_argument("--resume", action="store_true", help="continue the soak in the folder")
    found.add_argument("--picture", action="store_true", help="run nothing; draw the picture and print the table")
    found.add_argument("--period", type=float, default=60, help="minutes of a row of the table (%(default)s)")
    return found
