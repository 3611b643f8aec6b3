"""The settings of the workers that tests start: those of the test run, with the test's own database as the default."""

import json
import os

from tests.settings import *  # noqa: F403

DATABASES = {"default": json.loads(os.environ["OUTBOX_CELERY_DATABASE"])}
OUTBOX = {
    "PUBLISHERS": {
        "default": {"BACKEND": "django_outbox.publishers.memory.MemoryPublisher"},
        "celery": {  # type: ignore[dict-item]
            "BACKEND": "django_outbox.publishers.celery.CeleryPublisher",
            "OPTIONS": {"app": "tests.support.celery_worker:app"},
        },
    }
}
