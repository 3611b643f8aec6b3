"""The shop's settings, with defaults for other projects that install the shop."""

from django.conf import settings

BROKER_URL: str = getattr(settings, "BROKER_URL", "")
EXCHANGE: str = getattr(settings, "SHOP_EXCHANGE", "shop")
QUEUE: str = getattr(settings, "SHOP_QUEUE", "shop.orders")
BILLING_QUEUE: str = getattr(settings, "BILLING_QUEUE", "billing.orders")
DEMO_FILE: str = getattr(settings, "DEMO_FILE", "demo.jsonl")
DESTINATION: str = getattr(settings, "SHOP_DESTINATION", "shop.destinations.console.ConsoleDestination")
