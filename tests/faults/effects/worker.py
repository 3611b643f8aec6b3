"""The module that `celery -A` imports in the workers of a run."""

import os
from typing import Any

import django
from celery.signals import worker_ready

django.setup()

from tests.faults.effects.canvas import app  # noqa: E402 - it needs the models

__all__ = ["app"]


@worker_ready.connect
def report(**_: Any) -> None:
    """Let the run know that this worker takes tasks."""
    os.close(int(os.environ["FAULTS_READY"]))
