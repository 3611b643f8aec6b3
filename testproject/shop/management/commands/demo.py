"""`manage.py demo`: the outbox at work, from the first order to the last message, with the figures that prove it."""

import json
import logging
import sys
import time
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection, transaction
from django.db.models import Max

from django_outbox import OutboxError, OutboxMessage, enqueue
from shop.buyers import Placed, UnexpectedAnswer, place_orders
from shop.destinations import Destination, make_destination
from shop.models import Order
from shop.terminal import ProgressBar, short_path
from shop.views import OUT_OF_STOCK

ADMIN = "admin"
"""Name and password of the demo's superuser."""

ROLLBACK_EVERY = 10


@dataclass
class Figures:
    """What became of the orders and messages of one run.

    `arrived` counts arrivals and `distinct` the messages among them; `rolled_back_told` counts the messages about an
    order that was rolled back.
    """

    placed: Placed
    orders: int
    messages: int
    failed: int
    requeued: int
    delivered: int
    arrived: int
    distinct: int
    rolled_back_told: int

    def rows(self) -> list[tuple[str, int]]:
        """Return the summary, line by line."""
        return [
            ("orders sent", self.placed.count),
            ("  placed", self.placed.saved),
            ("  rolled back", self.placed.rolled_back),
            ("messages enqueued", self.messages),
            ("  failed at first", self.failed),
            ("  requeued", self.requeued),
            ("  delivered", self.delivered),
            ("  arrived", self.arrived),
            ("  arrived twice", self.arrived - self.distinct),
        ]

    def checks(self) -> list[tuple[str, bool]]:
        """Return what must hold, and whether it does."""
        saved = self.placed.saved
        return [
            ("the orders in the database are those that were placed", self.orders == saved),
            ("there is one message an order, and one for the invoice", self.messages == saved + 1),
            ("no message tells of an order that was rolled back", self.rolled_back_told == 0),
            ("the invoice alone failed, and was requeued", self.failed == self.requeued == 1),
            ("every message was delivered in the end", self.delivered == self.messages),
            ("every message arrived, and none twice", self.arrived == self.distinct == self.messages),
        ]


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
        # What the relay logs, a message that failed for one, is part of the story that is told here.
        logging.getLogger("django_outbox").setLevel(logging.CRITICAL)
        start = time.monotonic()
        destination = make_destination()
        try:
            figures = self._run(destination, options["orders"])
        except (OutboxError, UnexpectedAnswer) as error:
            raise CommandError(str(error)) from error
        finally:
            destination.close()
        self._report(figures, time.monotonic() - start)

    def _run(self, destination: Destination, count: int) -> Figures:
        self._step(f"Migrating {_database_name()}")
        call_command("migrate", verbosity=0)
        destination.prepare()
        orders = Order.objects.filter(id__gt=_last_id(Order))
        messages = OutboxMessage.objects.filter(id__gt=_last_id(OutboxMessage))

        self._step(f"Placing {count} orders through POST /orders/, and rolling one in {ROLLBACK_EVERY} back")
        placed = Placed()
        with ProgressBar("  ", count) as bar:
            for part in place_orders(count, rollback_every=ROLLBACK_EVERY):
                placed += part
                bar.advance(part.count)
        with transaction.atomic():
            enqueue("invoice.requested", {"orders": placed.saved}, key="invoice")

        self._step(f"Delivering to {destination.name}")
        destination.drain()
        for message in messages.processed()[:1]:
            payload = json.dumps(message.payload)[:60]
            self.stdout.write(f"   for example {message.type}, key {message.key}: {payload}...")
        reasons = [f"{message.type} failed: {message.error}" for message in messages.failed()]
        for reason in reasons:
            self.stdout.write(self.style.WARNING(f"   {reason}"))

        self._step(f"Mending the cause by {destination.repair_text}; requeueing what failed; delivering again")
        destination.repair()
        requeued = messages.requeue()
        destination.drain()

        own = set(messages.values_list("message_id", flat=True))
        everything = destination.arrived()
        arrived = [message_id for message_id, _ in everything if message_id in own]
        return Figures(
            placed=placed,
            orders=orders.count(),
            messages=len(own),
            failed=len(reasons),
            requeued=requeued,
            delivered=messages.processed().count(),
            arrived=len(arrived),
            distinct=len(set(arrived)),
            rolled_back_told=sum(payload.get("item") == OUT_OF_STOCK for _, payload in everything),
        )

    def _report(self, figures: Figures, seconds: float) -> None:
        self.stdout.write("")
        for label, number in figures.rows():
            self.stdout.write(f"   {label:<20}{number:>8,}")
        self.stdout.write("")
        wrong = False
        for text, holds in figures.checks():
            wrong = wrong or not holds
            self.stdout.write(f"   {self.style.SUCCESS('ok   ') if holds else self.style.ERROR('WRONG')} {text}")
        if wrong:
            raise CommandError("The figures do not agree. Does another relay or consumer run on the same database?")
        self.stdout.write(self.style.SUCCESS(f"\nDone in {seconds:.1f} s. Look at it in the admin:\n"))
        self.stdout.write(f"   python {short_path(sys.argv[0])} runserver")
        self.stdout.write(f"   http://127.0.0.1:8000/admin/django_outbox/outboxmessage/   {_make_superuser()}")

    def _step(self, text: str) -> None:
        self.stdout.write(f"{self.style.MIGRATE_HEADING('==')} {text}")


def _last_id(model: type[Order | OutboxMessage]) -> int:
    return model._default_manager.aggregate(last=Max("id"))["last"] or 0


def _database_name() -> str:
    name = connection.settings_dict["NAME"]
    return f"{connection.display_name}, {short_path(name) if connection.vendor == 'sqlite' else name}"


def _make_superuser() -> str:
    """Make the superuser, unless there is one of that name, and return how to log in."""
    users = get_user_model()
    user = users.objects.filter(username=ADMIN).first()
    if user is None:
        users.objects.create_superuser(ADMIN, "", ADMIN)
    elif not user.check_password(ADMIN):
        return f"(user {ADMIN}, with its own password)"
    return f"(user {ADMIN}, password {ADMIN}: for this demo only)"
