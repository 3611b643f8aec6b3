"""The Django app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class BillingConfig(AppConfig):
    """A service that receives the orders of the shop and writes invoices."""

    name = "billing"
    verbose_name = _("Billing")
