"""`manage.py demo`: the outbox at work, from the first order to the last message, with the figures that prove it."""

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection, transaction
from django.db.models import Max

from django_outbox import OutboxError, OutboxMessage, enqueue
from shop.buyers import Placed, place_orders
from shop.destinations import Destination, make_destination
from shop.models import Order
from shop.terminal import ProgressBar
from shop.views import OUT_OF_STOCK

ADMIN = "admin"
"""Name and password of the demo's superuser."""

ROLLBACK_EVERY = 10


@dataclass
class Figures:
    """What became of the orders and messages of one run."""

    placed: Placed = Placed()
    saved: int = 0
    messages: int = 0
    failed: int = 0
    requeued: int = 0
    delivered: int = 0
    left: int = 0


class Command(BaseCommand):
    """Runs in the shop's own database and may be repeated."""

    help = "Place orders, roll some back, deliver their messages, mend one that fails, and compare the figures."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--orders", metavar="N", type=int, default=300, help="How many (default: %(default)s).")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("The demo makes a superuser whose password is known to all; it needs DEBUG = True.")
        if options["orders"] < 1:
            raise CommandError("--orders must be at least 1.")
        destination = make_destination()
        try:
            self._run(destination, options["orders"])
        except OutboxError as error:
            raise CommandError(str(error)) from error
        finally:
            destination.close()

    def _run(self, destination: Destination, count: int) -> None:
        self._step(f"Migrating {connection.display_name} and making a superuser")
        call_command("migrate", verbosity=0)
        password = _make_superuser()
        destination.prepare()
        destination.drain()
        first_order, first_message = _last_id(Order), _last_id(OutboxMessage)
        earlier = len(destination.arrived())

        messages = OutboxMessage.objects.filter(id__gt=first_message)
        orders = Order.objects.filter(id__gt=first_order)
        figures = Figures()

        self._step(f"Placing {count} orders through POST /orders/; one in {ROLLBACK_EVERY} is rolled back")
        with ProgressBar("  ", count) as bar:
            for part in place_orders(count, rollback_every=ROLLBACK_EVERY):
                figures.placed += part
                bar.advance(part.count)
        with transaction.atomic():
            enqueue("invoice.requested", {"orders": figures.placed.saved}, key="invoice")
        figures.saved, figures.messages = orders.count(), messages.count()

        self._step(f"Delivering {figures.messages} messages to {destination.name}")
        destination.drain()
        figures.failed = messages.failed().count()
        for message in messages.failed():
            self.stdout.write(self.style.WARNING(f"   {message.type} failed: {message.error}"))

        self._step(f"Mending the cause ({destination.repair_text}), requeueing what failed, delivering again")
        destination.repair()
        figures.requeued = messages.requeue()
        destination.drain()
        figures.delivered = messages.processed().count()
        figures.left = messages.pending().count() + messages.failed().count()
        
        self._report(figures, checks)
