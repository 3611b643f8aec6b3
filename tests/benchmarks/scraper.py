"""A web process that Prometheus scrapes.

`python -m tests.benchmarks.scraper SECONDS` writes "ready", reads all metrics at this interval, and ends when standard
input is closed.
"""

import os
import select
import sys

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.benchmarks.settings"
django.setup()

from django_outbox.monitoring.prometheus import expose  # noqa: E402 - Django must be set up first


def main(interval: float) -> None:
    expose(["default"], "")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], interval)[0]:
        expose(["default"], "")


if __name__ == "__main__":
    main(float(sys.argv[1]))
