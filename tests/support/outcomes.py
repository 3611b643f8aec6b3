"""What outcomes have in common."""

from collections.abc import Sequence

from django_outbox.messages import Outcome, OutcomeKind


def kinds(outcomes: Sequence[Outcome]) -> list[OutcomeKind]:
    return [outcome.kind for outcome in outcomes]


def only(outcomes: Sequence[Outcome]) -> Outcome:
    (outcome,) = outcomes
    return outcome


def only_error(outcomes: Sequence[Outcome], kind: OutcomeKind) -> str:
    """Return the error that all outcomes have, and check that all are of that kind."""
    assert {*kinds(outcomes)} == {kind}
    (error,) = {outcome.error for outcome in outcomes}
    return error


def summary(outcome: Outcome) -> tuple[OutcomeKind, str, bool]:
    """Return what decides about a message; `rejected` and `waiting` return what is expected."""
    return outcome.kind, outcome.error_class, outcome.counted


def rejected(error_class: str) -> tuple[OutcomeKind, str, bool]:
    return OutcomeKind.REJECTED, error_class, True


def waiting(error_class: str) -> tuple[OutcomeKind, str, bool]:
    return OutcomeKind.DEFERRED, error_class, False
