"""`manage.py run_outbox_until_killed`: a relay that waits in mid-batch for the demo to kill it."""

import os
import sys
from typing import Any

from django_outbox.management.commands import run_outbox
from django_outbox.signals import phase_finished

MARK = "IN MID-BATCH"
"""Printed to standard error when the second batch is published and not yet settled."""

BATCHES = 2


class Command(run_outbox.Command):
    """Everything of `run_outbox`, with a receiver that waits in its worker's thread."""

    help = "Run the outbox until its second batch is published and not settled, and wait there to be killed."

    def handle(self, *args: Any, **options: Any) -> None:
        self._published = 0
        phase_finished.connect(self._wait_in_mid_batch)
        super().handle(*args, **options)

    def _wait_in_mid_batch(self, phase: str, **_: Any) -> None:
        self._published += phase == "publish"
        if self._published == BATCHES:
            print(MARK, file=sys.stderr, flush=True)
            # The pipe ends with the demo: no relay is left behind if the demo itself is killed.
            sys.stdin.read()
            os._exit(1)
