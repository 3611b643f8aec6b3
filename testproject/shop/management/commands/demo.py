"""`manage.py demo`: the outbox at work, from the first order to the last message, with figures that prove it."""

import json
import logging
import sys
import time
import uuid
from collections import Counter
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection, transaction
from django.db.models import Max, QuerySet
from django.urls import reverse

from django_outbox import OutboxError, OutboxMessage, enqueue
from django_outbox.models import OutboxMessageQuerySet
from shop.billing_service import BillingFailed, bill_orders
from shop.buyers import Placed, UnexpectedResponse, place_orders
from shop.destinations import Destination, make_destination
from shop.figures import Figures
from shop.killed_relay import LEASE, RelayEnded, kill_relay_in_mid_batch
from shop.models import Order, Receipt
from shop.terminal import ProgressBar, plural, short_path
from shop.views import OUT_OF_STOCK

ADMIN = "admin"
"""Name and password of the demo's superuser."""

MIN_ORDERS = 20
"""Fewer orders have no second batch for the relay to be killed in."""

ROLLBACK_EVERY = 10

BATCHES = 6
"""Batches that the orders' messages would take the relay that is killed in the second one."""

RECOVERY = 30.0
"""Seconds within which another relay must have delivered the batch of the killed one."""


class Command(BaseCommand):
    """Runs in the shop's own database, and can be repeated."""

    help = (
        "Place orders, roll some back, kill relays while they deliver messages and call handlers, let a second service "
        "write invoices, repair a message that fails, and compare the figures."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--orders",
            metavar="N",
            type=int,
            default=300,
            help=f"Number of orders, at least {MIN_ORDERS} (default: 300).",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("The demo creates a superuser with a well-known password, so it requires DEBUG = True.")
        if options["orders"] < MIN_ORDERS:
            raise CommandError(f"--orders must be at least {MIN_ORDERS}.")
        # The demo reports failed messages itself.
        logging.getLogger("django_outbox").setLevel(logging.CRITICAL)
        start = time.monotonic()
        destination = make_destination()
        try:
            figures = self._run(destination, options["orders"])
        except (OutboxError, UnexpectedResponse, RelayEnded, BillingFailed) as error:
            raise CommandError(str(error)) from error
        finally:
            destination.close()
        self._report(figures, time.monotonic() - start)

    def _run(self, destination: Destination, count: int) -> Figures:
        self._step(f"Migrate the database: {_database_name()}")
        call_command("migrate", verbosity=0)
        destination.prepare()
        orders = Order.objects.filter(id__gt=_last_id(Order))
        rows = OutboxMessage.objects.filter(id__gt=_last_id(OutboxMessage))
        messages, handled = rows.filter(publisher="default"), rows.filter(publisher="handlers").processed()
        receipts = Receipt.objects.filter(order__in=orders)

        placed = self._place_orders(count)
        in_flight, pending = self._kill_a_relay(destination, messages)
        handled_before_kill, receipts_before_kill = self._kill_a_relay_in_handlers(
            handled, receipts, batch_size=max(1, placed.saved // BATCHES)
        )
        self._recover(destination, rows)
        invoices = self._bill(destination)
        failed, requeued = self._fail_and_repair(destination, rows, placed)

        own = set(messages.values_list("message_id", flat=True))
        numbers = orders.values_list("number", flat=True)
        everything = destination.read_arrivals()
        times = Counter(message_id for message_id, _ in everything if message_id in own)
        return Figures(
            placed=placed,
            orders=orders.count(),
            enqueued=len(own),
            in_flight=len(in_flight),
            pending_after_kill=pending,
            failed=failed,
            requeued=requeued,
            delivered=messages.processed().count(),
            left_failed=messages.failed().count(),
            arrivals=times.total(),
            arrived=len(times),
            repeated_in_flight=sum(times[message_id] > 1 for message_id in in_flight),
            for_rolled_back=sum(payload.get("item") == OUT_OF_STOCK for _, payload in everything),
            handled_before_kill=handled_before_kill,
            receipts_before_kill=receipts_before_kill,
            handled=handled.count(),
            receipts=receipts.count(),
            invoices=len(invoices),
            broker_drops_duplicates=destination.drops_duplicates,
            each_order_has_one_invoice=sorted(invoices) == sorted(numbers),
        )

    def _place_orders(self, count: int) -> Placed:
        self._step(f"Place {plural(count, 'order')} through POST /orders/; one in {ROLLBACK_EVERY} is rolled back")
        placed = Placed()
        with ProgressBar("  ", count) as bar:
            for part in place_orders(count, rollback_every=ROLLBACK_EVERY):
                placed += part
                bar.advance(part.count)
        self._note(f"{plural(placed.saved, 'order')} saved, each with a message; {placed.rolled_back:,} rolled back.")
        self._note("Each message has two rows: one for other services, and one for the handlers of the shop.")
        return placed

    def _kill_a_relay(self, destination: Destination, messages: OutboxMessageQuerySet) -> tuple[set[uuid.UUID], int]:
        """Return the messages that were in flight at the kill, and the number of pending ones after it."""
        self._step("Start a relay in another process, and kill it with SIGKILL in the middle of a batch")
        with destination.open_output() as output:
            pid = kill_relay_in_mid_batch("default", batch_size=max(1, messages.count() // BATCHES), output=output)
        delivered = set(messages.processed().values_list("message_id", flat=True))
        own = set(messages.values_list("message_id", flat=True))
        in_flight = {message_id for message_id, _ in destination.read_arrivals()} & own - delivered
        self._note(f"Process {pid} is dead. It had delivered its first batch of {plural(len(delivered), 'message')}.")
        self._note(f"{plural(len(in_flight), 'message')} of its second batch had arrived, but this is not recorded.")
        return in_flight, messages.pending().count()

    def _kill_a_relay_in_handlers(
        self, handled: OutboxMessageQuerySet, receipts: "QuerySet[Receipt]", *, batch_size: int
    ) -> tuple[int, int]:
        """Return the number of messages that were handled before the kill, and of receipts."""
        self._step("Kill another relay, whose handler has written the receipts of a batch that is not committed")
        pid = kill_relay_in_mid_batch("handlers", batch_size=batch_size)
        committed = receipts.count()
        self._note(f"Process {pid} is dead. Its first batch of {plural(committed, 'receipt')} was committed.")
        self._note("The receipts of its second batch are rolled back, and their messages are still pending.")
        return handled.count(), committed

    def _recover(self, destination: Destination, rows: OutboxMessageQuerySet) -> None:
        self._step(f"Start another relay, and deliver the rest to {destination.name}")
        if connection.vendor == "sqlite":
            self._note(f"SQLite has no row locks, so the dead relay's claim ends after its timeout, here {LEASE} s.")
        start = time.monotonic()
        self._deliver(destination, rows)
        count = rows.processed().count()
        self._note(f"{plural(count, 'row')} delivered or handled after {time.monotonic() - start:.1f} s.")
        for message in rows.processed()[:1]:
            payload = json.dumps(message.payload)[:60]
            self._note(f"For example {message.type}, key {message.key}: {payload}...")

    def _bill(self, destination: Destination) -> list[uuid.UUID]:
        """Return the numbers of the orders that got an invoice, once for each invoice."""
        self._step(f"Run the billing service, whose inbox receives the orders from {destination.name}")
        invoices = bill_orders()
        self._note(f"{plural(len(invoices), 'invoice')} written, in billing's own database.")
        return invoices

    def _fail_and_repair(
        self, destination: Destination, rows: OutboxMessageQuerySet, placed: Placed
    ) -> tuple[int, int]:
        """Return the number of messages that failed and that were requeued."""
        self._step("Enqueue a report and a refund, which the broker does not accept yet")
        with transaction.atomic():
            enqueue("report.requested", {"orders": placed.saved}, key="report")
            enqueue("refund.requested", {"order": 1, "amount": "24.50"}, key="refund")
        self._deliver(destination, rows)
        failed = list(rows.failed())
        for message in failed:
            self.stdout.write(self.style.WARNING(f"   {message.type} failed: {message.error}"))

        self._step(f"Repair the cause for the report ({destination.repair_text}), requeue it and deliver it")
        destination.repair()
        requeued = rows.filter(type="report.requested").requeue()
        self._deliver(destination, rows)
        return len(failed), requeued

    def _deliver(self, destination: Destination, rows: OutboxMessageQuerySet) -> None:
        """Drain until nothing is pending. The claim of a killed relay may take a moment to end."""
        deadline = time.monotonic() + RECOVERY
        destination.drain()
        while rows.pending().exists() and time.monotonic() < deadline:
            time.sleep(0.1)
            destination.drain()

    def _report(self, figures: Figures, seconds: float) -> None:
        self.stdout.write("")
        for label, number in figures.rows():
            self.stdout.write(f"   {label:<26}{number:>8,}")
        self.stdout.write("")
        wrong = False
        for text, holds in figures.checks():
            wrong = wrong or not holds
            self.stdout.write(f"   {self.style.SUCCESS('ok   ') if holds else self.style.ERROR('WRONG')} {text}")
        if wrong:
            raise CommandError("The figures disagree. Is another relay or consumer running on the same database?")
        page = reverse("admin:django_outbox_overview_changelist")
        self.stdout.write(self.style.SUCCESS(f"\nDone in {seconds:.1f} s."))
        self.stdout.write("The refund is still failed. Requeue or discard it on the overview in the admin:\n\n")
        self.stdout.write(f"   python {short_path(sys.argv[0])} runserver")
        self.stdout.write(f"   http://127.0.0.1:8000{page}")
        self.stdout.write(f"   {_make_superuser()}")

    def _step(self, text: str) -> None:
        self.stdout.write(f"{self.style.MIGRATE_HEADING('==')} {text}")

    def _note(self, text: str) -> None:
        self.stdout.write(f"   {text}")


def _last_id(model: type[Order | OutboxMessage]) -> int:
    return model._default_manager.aggregate(last=Max("id"))["last"] or 0


def _database_name() -> str:
    name = connection.settings_dict["NAME"]
    return f"{connection.display_name}, {short_path(name) if connection.vendor == 'sqlite' else name}"


def _make_superuser() -> str:
    """Create the superuser unless it exists, and return how to log in."""
    users = get_user_model()
    user = users.objects.filter(username=ADMIN).first()
    if user is None:
        users.objects.create_superuser(ADMIN, "", ADMIN)
    elif not user.check_password(ADMIN):
        return f"user {ADMIN}, whose password you have changed"
    return f"user {ADMIN}, password {ADMIN} (created for this demo)"
