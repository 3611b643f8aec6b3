"""The shop's orders and receipts, and the messages that its consumer received."""

import uuid
from typing import ClassVar

from django.core.validators import MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _


class Order(models.Model):
    """An order of one item by a customer."""

    number = models.UUIDField(_("number"), default=uuid.uuid4, unique=True, editable=False)
    customer = models.CharField(_("customer"), max_length=200)
    item = models.CharField(_("item"), max_length=200)
    quantity = models.PositiveIntegerField(_("quantity"), validators=[MinValueValidator(1)])
    total = models.DecimalField(_("total"), max_digits=10, decimal_places=2, validators=[MinValueValidator(0)])
    note = models.TextField(_("note"), blank=True, default="")
    created = models.DateTimeField(_("created"), auto_now_add=True)

    objects: ClassVar[models.Manager["Order"]]

    class Meta:
        verbose_name = _("order")
        verbose_name_plural = _("orders")

    def __str__(self) -> str:
        return f"{self.quantity} {self.item} for {self.customer}"


class Receipt(models.Model):
    """The receipt of an order, which a handler writes."""

    order = models.OneToOneField(Order, models.CASCADE, verbose_name=_("order"))
    total = models.DecimalField(_("total"), max_digits=10, decimal_places=2)
    written = models.DateTimeField(_("written"), auto_now_add=True)
    confirmed = models.DateTimeField(
        _("confirmed"), null=True, blank=True, help_text=_("When the confirmation was sent to the customer.")
    )

    objects: ClassVar[models.Manager["Receipt"]]

    class Meta:
        verbose_name = _("receipt")
        verbose_name_plural = _("receipts")

    def __str__(self) -> str:
        return f"receipt {self.pk}: {self.total}"


class ReceivedMessage(models.Model):
    """A message that `consume_orders` received: one row per message id, however often it was delivered."""

    message_id = models.UUIDField(_("message ID"), unique=True)
    type = models.CharField(_("type"), max_length=255)
    key = models.CharField(_("key"), max_length=255, blank=True)
    payload = models.JSONField(_("payload"))
    received_at = models.DateTimeField(_("received at"), auto_now_add=True)
    deliveries = models.PositiveIntegerField(_("deliveries"), default=0, help_text=_("More than one: a duplicate."))

    objects: ClassVar[models.Manager["ReceivedMessage"]]

    class Meta:
        verbose_name = _("received message")
        verbose_name_plural = _("received messages")

    def __str__(self) -> str:
        return f"{self.type} {self.message_id}"
