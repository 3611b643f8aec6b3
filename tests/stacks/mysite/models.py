from django.db import models


class Order(models.Model):
    number = models.CharField(max_length=40)

    def __str__(self) -> str:
        return self.number
