"""What several benchmarks take on the command line."""

import argparse
from pathlib import Path

from django_outbox.management.arguments import whole_number


def output_file(text: str) -> Path:
    """Read the path of a file that is written in the end, when it is too late to find that there is no such folder."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def add_numbers(parser: argparse.ArgumentParser, **defaults: tuple[int, str]) -> None:
    """Add options that take a whole number of at least 1; each has a default and a text."""
    for name, (default, text) in defaults.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="N",
            type=whole_number,
            default=default,
            help=f"{text} (default: {default:,}).",
        )
