"""The module that `celery -A` imports in the workers that tests start."""

import os

from tests.support.celery.app import make_app

app = make_app(os.environ["OUTBOX_CELERY_BROKER"], os.environ["OUTBOX_CELERY_PREFIX"])
app.conf.beat_schedule = {"note": {"task": "tests.note", "schedule": 1.0, "args": ("from beat",)}}
