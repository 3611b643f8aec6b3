"""A transaction of an operator that keeps pending messages locked, and what it noted of them.

Its journal has a line for each message, when all is over: `<message id> <key> <from> <to>`, the times of the monotonic
clock between which a relay could not have the message in hand. It ends early when its standard input does.
"""

import select
import sys
import time
from pathlib import Path
from typing import Any

from django.db import transaction

from django_outbox import OutboxMessage

ATTEMPTS = 200
"""How many times it looks for pending messages, because relays are quick."""


class Undone(Exception):
    """Rolls the transaction back."""


def main(*, journal: str, **options: Any) -> None:
    lines: list[str] = []
    for _ in range(ATTEMPTS):
        if lines := keep_locked(**options):
            break
        time.sleep(0.05)
    # Without lines if the load was over, and nothing was pending.
    Path(journal).write_text("".join(lines))


def keep_locked(*, count: int, hold: bool, commit: bool, locked: float, held: float) -> list[str]:
    """Lock pending messages of keys; return the lines of the journal.

    Args:
        locked: seconds for which the transaction is open.
        held: seconds for which they remain held after it.
    """
    pending = OutboxMessage.objects.pending().exclude(key="")
    ids = list(pending.order_by("-id").values_list("id", flat=True)[:count])
    chosen = OutboxMessage.objects.filter(pk__in=ids)
    rows: list[OutboxMessage] = []
    try:
        with transaction.atomic():
            if hold:
                chosen.hold()
                rows = [row for row in chosen if row.is_held]
            else:
                rows = list(chosen.pending().select_for_update())
            begin = time.monotonic()
            if not rows:
                return []
            wait(locked)
            end = time.monotonic()
            if not commit:
                raise Undone
    except Undone:
        pass
    else:
        if hold:
            wait(held)
            end = time.monotonic()
            chosen.retry_now()
    return [f"{row.message_id.hex} {row.key} {begin:.7f} {end:.7f}\n" for row in rows]


def wait(seconds: float) -> None:
    """Wait, unless the input has ended."""
    select.select([sys.stdin], [], [], seconds)
