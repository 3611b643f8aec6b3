"""The promises of claim and settle hold for every generated schedule of writers, relays and operators."""

import os
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from django_outbox.stores import timeline
from tests.conftest import ALIASES
from tests.stores.schedules.machine import Schedules
from tests.stores.schedules.model import Violation
from tests.stores.schedules.mutants import MUTANTS
from tests.stores.schedules.stage import Stage, staged

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

SCHEDULES = int(os.environ.get("OUTBOX_SCHEDULES", "15"))
"""Number of schedules that are tried on each database."""

PROMISES = "one owner|one fate|order|sent twice|IntegrityError"


@pytest.fixture
def stage(using: str) -> Iterator[Stage]:
    with staged(using, writers=4, relays=3) as stage:
        yield stage


@pytest.mark.parametrize("kind", ["", "by time", "few"], ids=lambda kind: kind or "heads are listed")
def test_no_schedule_breaks_a_promise(stage: Stage, kind: str, monkeypatch: pytest.MonkeyPatch):
    # The few messages of a schedule would end the search by time.
    monkeypatch.setattr(timeline, "FEW_ROWS", -1)
    machine = type("Schedules", (Schedules,), {"stage": stage, "kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=SCHEDULES,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )


@pytest.mark.parametrize("mutated", [False, True], ids=["the store", "the mutant"])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_schedule_tells_the_store_from(stage: Stage, mutant: str, mutated: bool, monkeypatch: pytest.MonkeyPatch):
    if stage.one_writer and mutant in {"a lock on the head alone", "a claim that locks no rows"}:
        pytest.skip("SQLite has one writer, so no lock of rows can be missing")
    change, opened, written, steps = MUTANTS[mutant]
    if mutated:
        change(monkeypatch)
    with pytest.raises(Violation, match=PROMISES) if mutated else nullcontext():
        schedule = type("Schedules", (Schedules,), {"stage": stage})()
        try:
            schedule.begin(opened=opened, written=written)
            for step in steps:
                schedule.take(step)
        finally:
            schedule.teardown()
