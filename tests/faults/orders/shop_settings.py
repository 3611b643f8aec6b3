"""The settings of the shop in a run: those of the example project, with quick database errors and no Celery."""

from project.settings import *  # noqa: F403 - only a few differ
from project.settings import DATABASES

DATABASES["default"].setdefault("OPTIONS", {})["connect_timeout"] = 5
# The confirmation of an order is part of the transaction that writes its receipt: a run has no Celery worker.
CELERY_TASK_ALWAYS_EAGER = True
