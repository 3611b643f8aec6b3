"""Command-line options that several benchmarks share."""

import argparse
from pathlib import Path

from django_outbox.conf import SOURCES
from django_outbox.management.arguments import whole_number

HELP = {
    "batch_size": "Messages in a claim, a transaction or an acknowledgement",
    "keys": "Number of keys",
    "messages": "Messages of a case",
    "repeats": "Rounds; the median of each case counts",
    "rows": "Rows that are in the table already",
    "seconds": "Duration of each measurement",
    "workers": "Workers of a relay",
    "writers": "Processes that write at the same time",
}


def output_file(text: str) -> Path:
    """Read the path of a file, and refuse a missing folder before minutes are spent on measuring."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def add_numbers(parser: argparse.ArgumentParser, **defaults: int | list[int]) -> None:
    """Add options that take a whole number of at least 1, or several where the default is a list."""
    for name, default in defaults.items():
        numbers = default if isinstance(default, list) else [default]
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="N",
            type=whole_number,
            nargs="+" if isinstance(default, list) else None,
            default=default,
            help=f"{HELP[name]} (default: {' '.join(f'{number:,}' for number in numbers)}).",
        )


def add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", choices=SOURCES, default="table", help="The publisher's SOURCE (default: table).")
