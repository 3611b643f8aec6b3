"""What operators and applications do without breaking anything: they keep locks, hold, pause, and enqueue for later.

Each of these happens alone, when the relays have caught up, so that everything else must go on as usual meanwhile.
"""

import random
import time
from collections.abc import Mapping
from pathlib import Path

from tests.faults.kinds import fault
from tests.faults.plan import TYPES
from tests.faults.stage import Stage
from tests.faults.windows import Window
from tests.support.children import SuiteError

PAUSED_AFTER = 1.0
"""Seconds after which every relay follows a pause."""

PATIENCE = 30.0
"""Seconds that a process may take to end after its input."""


@fault("operator", alone=True)
def locks_kept(stage: Stage, rand: random.Random) -> int:
    """A transaction locks 1 to 60 pending messages of keys for long, or holds them, and is rolled back or committed."""
    options = {
        "count": rand.choice((1, 5, 60)),
        "hold": rand.random() < 0.7,
        "commit": rand.random() < 0.7,
        "locked": rand.uniform(8, 10),
        "held": rand.uniform(0, 2),
    }
    withhold(stage, "locks_kept", "locking", options)
    return 0


@fault("operator", alone=True)
def keys_waiting(stage: Stage, rand: random.Random) -> int:
    """Many keys wait for their delay, and a long queue of one key waits behind its first message."""
    journal = stage.nursery.logs / f"writer-{len(stage.journals)}.journal"
    keys = min(max(1_000, stage.plan.messages // 10), 50_000)
    options = {
        "number": len(stage.journals),
        "seed": stage.plan.seed,
        "written": str(journal),
        "keys": keys,
        "queue": min(keys, 5_000),
        "delay": rand.uniform(9, 11) + keys / 500,
    }
    stage.journals.append(journal)
    withhold(stage, "keys_waiting", "waiting", options)
    return 0


@fault("operator", alone=True)
def type_paused(stage: Stage, rand: random.Random) -> int:
    """One type is paused under traffic, and resumed: the other one goes on."""
    type = rand.choice(TYPES)
    stage.manage("outbox_pause", "--publisher", "default", "--type", type)
    begin = time.monotonic() + PAUSED_AFTER
    stage.pause(rand.uniform(8, 10))
    stage.windows.append(Window("paused", begin, time.monotonic(), {}, types=frozenset({type})))
    stage.manage("outbox_resume", "--publisher", "default", "--type", type)
    return 0


def withhold(stage: Stage, name: str, module: str, options: Mapping[str, object]) -> None:
    """Run a process that withholds messages until it ends, and note what it withheld."""
    journal = stage.nursery.logs / f"withheld-{len(stage.windows)}.journal"
    process = stage.start_process(module, module, **options, journal=str(journal))
    while process.code is None and not stage.over.is_set():
        stage.pause(0.1)
    process.input.close()
    if process.wait(PATIENCE) != 0:
        raise SuiteError(f"{module} ended with {process.code}:\n{process.tail()}")
    if journal.stat().st_size:
        stage.windows.append(read_window(name, journal))


def read_window(name: str, journal: Path) -> Window:
    """Return the time that a process noted, one line a message: `<message id> <key> <from> <to>`."""
    rows = [line.split() for line in journal.read_text().splitlines()]
    return Window(
        name,
        begin=max(float(begin) for _, _, begin, _ in rows),
        end=max(float(end) for *_, end in rows),
        ids={id: float(end) for id, _, _, end in rows},
        keys=frozenset(key for _, key, _, _ in rows),
    )
