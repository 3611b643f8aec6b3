"""A model whose instances record events. Its table exists while the tests of a module run that use it."""

from django.db import models

from django_outbox.events import RecordsEvents


class Purchase(RecordsEvents, models.Model):
    number = models.CharField(max_length=20, unique=True)

    class Meta:
        app_label = "tests"

    def __str__(self) -> str:
        return self.number
