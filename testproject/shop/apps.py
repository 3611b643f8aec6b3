"""The Django app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ShopConfig(AppConfig):
    """A small shop that publishes a message for each order."""

    name = "shop"
    verbose_name = _("Shop")
