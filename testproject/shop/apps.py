"""The Django app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ShopConfig(AppConfig):
    """A small shop, which tells the world about its orders."""

    name = "shop"
    verbose_name = _("Shop")
