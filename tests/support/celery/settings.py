"""The settings of the workers that tests start: those of the test run, with the test's own database as the default."""

import json
import os

from tests.settings import *  # noqa: F403

DATABASES = {"default": json.loads(os.environ["OUTBOX_CELERY_DATABASE"])}
CELERY = "django_outbox.brokers.celery.CeleryPublisher"
OUTBOX = {
    "PUBLISHERS": {
        "default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"},
        "celery": {"BACKEND": CELERY, "OPTIONS": {"app": "tests.support.celery.worker:app"}},  # type: ignore[dict-item]
    }
}
