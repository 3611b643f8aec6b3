"""The module that `celery -A` imports in the workers of a run."""

import django

django.setup()

from tests.faults.effects.canvas import app  # noqa: E402 - it needs the models

__all__ = ["app"]
