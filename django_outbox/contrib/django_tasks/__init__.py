"""Django Tasks through the outbox: `task.enqueue()` writes a message in the caller's transaction.

    TASKS = {"default": {"BACKEND": "django_outbox.contrib.django_tasks.OutboxBackend"}}

A relay runs the task in the transaction of its claim, so what the task writes to the same database is committed
together with its result, or not at all. Results are in a table of this app, which must be in `INSTALLED_APPS`.
"""

import django

if django.VERSION < (6, 0):
    raise ImportError(
        "django_outbox.contrib.django_tasks needs Django 6.0 or newer, which has django.tasks; this is Django "
        f"{django.get_version()}. Upgrade Django, or remove it from INSTALLED_APPS."
    )

from django_outbox.contrib.django_tasks.backend import OutboxBackend

__all__ = ["OutboxBackend"]
