"""System checks of the settings and the databases. Each message has an ID, and a hint with the remedy.

Importing this package registers them. Select them with `manage.py check --tag django_outbox`.
"""

from django_outbox.checks import databases, events, handlers, routing, settings
from django_outbox.checks.registration import TAG, of_settings

__all__ = ["TAG", "databases", "events", "handlers", "of_settings", "routing", "settings"]
