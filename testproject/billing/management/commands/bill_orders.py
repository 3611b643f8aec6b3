"""`manage.py bill_orders --settings billing.settings`: the billing service, until it has nothing more to do."""

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db.models import Max

from billing.models import Invoice


class Command(BaseCommand):
    """The commands that a service runs all the time, one after the other."""

    help = (
        "Receive the orders of the shop, write their invoices, and print the number of each order with a new invoice."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0)
        last = Invoice.objects.aggregate(last=Max("id"))["last"] or 0
        call_command("run_inbox", "--idle-exit", "2", verbosity=0)
        call_command("run_outbox", "--drain", "--publisher", "handlers", verbosity=0)
        for number in Invoice.objects.filter(id__gt=last).order_by("id").values_list("order_number", flat=True):
            self.stdout.write(str(number))
