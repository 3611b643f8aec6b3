"""The shop's own settings, and their defaults where the shop is installed in another project."""

from django.conf import settings

EXCHANGE: str = getattr(settings, "SHOP_EXCHANGE", "shop")
QUEUE: str = getattr(settings, "SHOP_QUEUE", "shop.orders")
DEMO_FILE: str = getattr(settings, "DEMO_FILE", "demo.jsonl")
