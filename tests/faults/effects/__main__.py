"""Kill relays while they call handlers: `python -m tests.faults.effects --help`."""

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import django

from tests.support.databases import Database

DATABASES = ("postgresql", "mariadb", "sqlite")


def main(arguments: list[str]) -> int:
    """Run, print the figures, and return 0 if each effect exists exactly once."""
    options = parser().parse_args(arguments)
    if options.is_child:
        return run(options)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="outbox-effects-"))
        if options.database == "sqlite":
            url = f"sqlite:///{folder}/db.sqlite3"
        else:
            os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
            url = stack.enter_context(Database(options.database)).url
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
            "FAULTS_DATABASE_URL": url,
            "FAULTS_HANDLERS": "1",
        }
        command = [sys.executable, "-m", "tests.faults.effects", *arguments, "--is-child"]
        log = Path(folder) / "log"
        with log.open("wb") as output:
            code = subprocess.run(command, env=environment, stderr=output, check=False).returncode
        if code:
            sys.stdout.write(log.read_text()[-20_000:])
        return code


def run(options: argparse.Namespace) -> int:
    """Run on the database of the settings."""
    django.setup()
    # Its models need the settings.
    from tests.faults.effects.run import Run  # noqa: PLC0415

    made = Run(options.messages, options.kills, options.relays, options.seed)
    try:
        figures = made.execute()
    finally:
        made.end()
    sys.stdout.write(f"{options.database}: {figures}\n")
    return 0 if figures.good else 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="python -m tests.faults.effects", description=__doc__)
    found.add_argument("--database", choices=DATABASES, default="postgresql")
    found.add_argument("--messages", type=int, default=2000, help="committed messages (%(default)s)")
    found.add_argument("--kills", type=int, default=100, help="relays that are killed (%(default)s)")
    found.add_argument("--relays", type=int, default=3, help="relay processes (%(default)s)")
    found.add_argument("--seed", type=int, default=7, help="seed of messages and kills (%(default)s)")
    found.add_argument("--is-child", action="store_true", help=argparse.SUPPRESS)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
