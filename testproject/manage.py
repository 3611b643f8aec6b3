#!/usr/bin/env python
"""Django's command line for the shop."""

import os
import sys


def main() -> None:
    """Run a management command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    try:
        from django.core.management import execute_from_command_line  # noqa: PLC0415 - a missing Django is reported below
    except ImportError as error:
        raise SystemExit(f"{error}. Install the requirements: pip install -r testproject/requirements.txt") from None
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
