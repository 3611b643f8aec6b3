"""A model whose instances record events. Its table exists while the tests of a module run that use it."""

from typing import ClassVar

from django.db import models

from django_outbox.events import RecordsEvents


class Purchase(RecordsEvents, models.Model):
    number = models.CharField(max_length=20, unique=True)

    # The app is not installed, so that type checkers do not know of it.
    objects: ClassVar[models.Manager["Purchase"]] = models.Manager()

    class Meta:
        app_label = "tests"

    def __str__(self) -> str:
        return self.number
