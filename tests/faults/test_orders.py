"""Shop, RabbitMQ and billing while everything is killed: each committed order has one invoice."""

from typing import Any

import pytest

from tests.faults.breaking import make_schedule
from tests.faults.orders.kinds import kinds_for
from tests.faults.orders.plan import Plan
from tests.faults.orders.report import Result, table
from tests.faults.orders.run import Run
from tests.support.children import SuiteError

KINDS = 10


def run(**options: Any) -> Result:
    return Run(Plan(minutes=6, **options)).execute()


@pytest.mark.slow
def test_each_committed_order_has_one_invoice_although_everything_is_killed():
    result = run(orders=250, kills=KINDS)
    if not result.good:
        pytest.fail(table(result), pytrace=False)
    assert len({kill.name for kill in result.kills}) == KINDS
    assert result.ledger.orders == 250
    assert result.ledger.rolled_back > 0


@pytest.mark.slow
def test_a_run_notices_an_inbox_that_forgets_what_it_has_stored():
    result = run(orders=150, kills=6, each=1, mutant="forget-ids", kinds=("connections-cut",))
    broken = {name for name, count in result.promises.items() if count}
    assert broken == {"orders with two or more invoices"}, table(result)
    assert "A PROMISE WAS BROKEN." in table(result)


def test_every_kind_of_kill_occurs_once_before_any_occurs_twice():
    kinds = kinds_for()
    assert len(kinds) == KINDS
    lanes = make_schedule(kinds, KINDS, seed=3)
    assert sorted(fault.name for lane in lanes.values() for _, fault, _ in lane) == sorted(kind.name for kind in kinds)


def test_an_unknown_kind_of_kill_is_refused_by_name():
    with pytest.raises(SuiteError, match="no kills of the kinds meteorite"):
        kinds_for(["inbox-killed", "meteorite"])
