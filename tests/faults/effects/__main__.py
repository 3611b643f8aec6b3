"""Kill relays while they call handlers: `python -m tests.faults.effects --help`."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.support.databases import Database

DATABASES = ("postgresql", "mariadb", "sqlite")


def main(arguments: list[str]) -> int:
    """Run, print the figures, and return 0 if each effect exists exactly once."""
    options = vars(parser().parse_args(arguments))
    database = options.pop("database")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="outbox-effects-"))
        if database == "sqlite":
            url = f"sqlite:///{folder}/db.sqlite3"
        else:
            os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
            url = stack.enter_context(Database(database)).url
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
            "FAULTS_DATABASE_URL": url,
            "FAULTS_HANDLERS": "1",
        }
        command = [sys.executable, "-m", "tests.faults.process", "effects.run", json.dumps(options)]
        log = Path(folder) / "log"
        with log.open("wb") as output:
            code = subprocess.run(command, env=environment, stderr=output, check=False).returncode
        if code:
            sys.stdout.write(log.read_text()[-20_000:])
        return code


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m tests.faults.effects", description=__doc__)
    found.add_argument("--database", choices=DATABASES, default="postgresql")
    found.add_argument("--messages", type=int, default=2000, help="committed messages (%(default)s)")
    found.add_argument("--kills", type=int, default=100, help="relays that are killed (%(default)s)")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
