"""A limit on how often something is done."""

from django_outbox.allowance import Allowance
from tests.support.messages import Clock


def test_an_allowance_is_renewed_after_its_interval():
    clock = Clock()
    allowance = Allowance(2, 60.0, clock)
    assert [allowance.take() for _ in range(3)] == [True, True, False]
    clock.now = 60.0
    assert [allowance.take() for _ in range(3)] == [True, True, False]
