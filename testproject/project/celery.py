"""Celery's app: `celery -A project worker` and `celery -A project beat` run the outbox instead of `run_outbox`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
