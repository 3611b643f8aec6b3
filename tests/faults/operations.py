"""An operator: a process that requeues and discards failed messages while the relays run, and mends what can be mended.

It notes each operation in its journal, when its outcome is known, one line a message:
`<message id> <action> <from> <to>`, with times of the monotonic clock before and after. It ends when its standard input
does. A line of input, `finish`, makes it mend or discard all failed messages, so that nothing is blocked for good.
"""

import enum
import random
import select
import sys
import time
from pathlib import Path
from typing import Any

from django.db import DatabaseError, InterfaceError, connection, transaction

from django_outbox import OutboxMessage
from django_outbox.retention import discard

PAUSE = 0.3
"""Seconds between two operations."""

MAX_CHOSEN = 20
"""Maximum number of messages in one operation."""


class Action(str, enum.Enum):
    """An operator's actions on a failed message."""

    REQUEUE = "requeue"
    """Requeue it as it is: it fails again."""
    MEND = "mend"
    """Give it a topic that has a queue, and requeue it: it arrives."""
    DISCARD = "discard"


class Operator:
    """Chooses failed messages and does something with them."""

    def __init__(self, seed: int, journal: Path) -> None:
        self._rand = random.Random(f"{seed}/operator")
        self._journal = journal.open("w")
        self.finishing = False

    def work(self) -> None:
        """Do one operation, and repeat it until it has succeeded."""
        chosen: list[tuple[Any, ...]] = []
        action = Action.REQUEUE
        begin = 0.0
        while True:
            try:
                if not chosen:
                    chosen, action = self._choose()
                    begin = time.monotonic()
                self._act(action, [id for id, _, _ in chosen])
            except (DatabaseError, InterfaceError) as error:
                sys.stderr.write(f"again: {type(error).__name__}: {str(error).strip()}\n")
                connection.close()
                time.sleep(0.1)
            else:
                break
        end = time.monotonic()
        self._journal.writelines(f"{id.hex} {action.value} {begin:.7f} {end:.7f}\n" for _, id, _ in chosen)
        self._journal.flush()

    def _choose(self) -> tuple[list[tuple[Any, ...]], Action]:
        failed = list(OutboxMessage.objects.failed().order_by("id").values_list("id", "message_id", "topic")[:1000])
        if not self.finishing:
            # The others stay failed, and their rows can be compared with the dead letters.
            failed = [row for row in failed if row[0] % 3]
        mendable = [row for row in failed if row[2] == "nowhere"]
        actions = [Action.DISCARD] if self.finishing else [Action.DISCARD, Action.REQUEUE]
        if mendable:
            actions.append(Action.MEND)
        action = self._rand.choice(actions)
        rows = mendable if action is Action.MEND else failed
        most = len(rows) if self.finishing else MAX_CHOSEN
        return self._rand.sample(rows, min(self._rand.randint(0, most), len(rows))), action

    def _act(self, action: Action, ids: list[int]) -> None:
        chosen = OutboxMessage.objects.filter(pk__in=ids)
        if action is Action.DISCARD:
            discard(chosen)
            return
        with transaction.atomic():
            if action is Action.MEND:
                chosen.failed().update(topic="")
            chosen.requeue()


def main(*, seed: int, journal: str) -> None:
    operator = Operator(seed, Path(journal))
    while True:
        if select.select([sys.stdin], [], [], PAUSE)[0]:
            if not sys.stdin.readline():
                return
            operator.finishing = True
        operator.work()
