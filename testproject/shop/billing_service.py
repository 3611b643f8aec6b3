"""The billing service in another process, as the shop's demo runs it."""

import subprocess
import sys
import uuid


class BillingFailed(Exception):
    """The billing service could not do its work."""


def bill_orders() -> list[uuid.UUID]:
    """Let billing receive what the shop has published, and return the numbers of the orders with a new invoice.

    Raises:
        BillingFailed: the process failed.
    """
    done = subprocess.run(  # noqa: S603 - a command of this project
        [sys.executable, sys.argv[0], "bill_orders", "--settings", "billing.settings"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BillingFailed(f"The billing service has failed:\n{done.stderr}")
    return [uuid.UUID(line) for line in done.stdout.split()]
