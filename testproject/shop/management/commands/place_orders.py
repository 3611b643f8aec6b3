"""`manage.py place_orders`: place many orders through the shop's own view."""

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from shop.buyers import Placed, UnexpectedResponse, place_orders
from shop.terminal import ProgressBar, plural


class Command(BaseCommand):
    """Place orders and report how many were saved."""

    help = "Place orders through POST /orders/. Some of them are rolled back."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--count", metavar="N", type=int, default=1000, help="Number of orders (default: 1000).")
        parser.add_argument(
            "--rollback-every", metavar="N", type=int, default=10, help="Roll back every Nth; 0 for none (default: 10)."
        )
        parser.add_argument("--processes", metavar="N", type=int, default=1, help="Number of processes (default: 1).")

    def handle(self, *args: Any, **options: Any) -> None:
        count, rollback_every, processes = options["count"], options["rollback_every"], options["processes"]
        if count < 1 or processes < 1 or rollback_every < 0:
            raise CommandError("--count and --processes must be at least 1, --rollback-every at least 0.")
        placed, start = Placed(), time.monotonic()
        try:
            with ProgressBar("Placing orders", count) as bar:
                for part in place_orders(count, rollback_every=rollback_every, processes=processes):
                    placed += part
                    bar.advance(part.count)
        except UnexpectedResponse as error:
            raise CommandError(str(error)) from error
        seconds = time.monotonic() - start
        self.stdout.write(
            f"{plural(placed.saved, 'order')} placed, {placed.rolled_back:,} rolled back, "
            f"in {seconds:.1f} s ({placed.count / seconds:,.0f} a second)."
        )
