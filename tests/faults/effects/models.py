"""What was written, and what handlers have made of it. No constraint hides an effect that happens twice."""

from typing import ClassVar

from django.db import models


class Written(models.Model):
    """A number that was committed together with a message."""

    objects: ClassVar[models.Manager["Written"]] = models.Manager()

    number = models.IntegerField()
    type = models.CharField(max_length=10)
    key = models.CharField(max_length=10)

    def __str__(self) -> str:
        return f"{self.type} {self.number}"


class Effect(models.Model):
    """The effect of one handler for one number, in the order in which they happened."""

    objects: ClassVar[models.Manager["Effect"]] = models.Manager()

    id = models.BigAutoField(primary_key=True)
    number = models.IntegerField()
    handler = models.CharField(max_length=10)

    def __str__(self) -> str:
        return f"{self.handler} {self.number}"
