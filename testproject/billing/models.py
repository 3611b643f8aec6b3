"""The invoices."""

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _


class Invoice(models.Model):
    """The invoice of an order.

    No constraint prevents a second one for the same order: the inbox stores each message once, and an invoice is
    committed together with the state of its message.
    """

    order_number = models.UUIDField(_("order number"), db_index=True)
    customer = models.CharField(_("customer"), max_length=200)
    total = models.DecimalField(_("total"), max_digits=10, decimal_places=2)
    written = models.DateTimeField(_("written"), auto_now_add=True)

    objects: ClassVar[models.Manager["Invoice"]]

    class Meta:
        verbose_name = _("invoice")
        verbose_name_plural = _("invoices")

    def __str__(self) -> str:
        return f"{self.total} for {self.customer}"
