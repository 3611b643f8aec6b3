"""All that a process on the test databases needs: what forks such processes imports it once."""

import django

django.setup()

from django_outbox.relay import Relay  # noqa: E402

__all__ = ["Relay"]
