"""Command-line options that several benchmarks share."""

import argparse
from pathlib import Path

from django_outbox.management.arguments import whole_number


def output_file(text: str) -> Path:
    """Read the path of a file, and refuse a missing folder before minutes are spent on measuring."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def add_numbers(parser: argparse.ArgumentParser, **defaults: tuple[int | list[int], str]) -> None:
    """Add options that take a whole number of at least 1, or several where the default is a list."""
    for name, (default, text) in defaults.items():
        numbers = default if isinstance(default, list) else [default]
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="N",
            type=whole_number,
            nargs="+" if isinstance(default, list) else None,
            default=default,
            help=f"{text} (default: {' '.join(f'{number:,}' for number in numbers)}).",
        )
