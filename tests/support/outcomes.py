"""What outcomes have in common."""

from collections.abc import Sequence

from django_outbox.messages import Outcome, OutcomeKind


def only_error(outcomes: Sequence[Outcome], verdict: OutcomeKind) -> str:
    """Return the error that all outcomes have, and see to it that all have that verdict."""
    assert {outcome.kind for outcome in outcomes} == {verdict}
    (error,) = {outcome.error for outcome in outcomes}
    return error
