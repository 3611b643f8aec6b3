"""Dead letters: copies of failed messages, for the dead-letter publisher."""

import datetime
from collections.abc import Sequence

from django_outbox.brokers.outcomes import call_publisher
from django_outbox.brokers.publisher import Publisher
from django_outbox.messages import ACCEPTED, FAILED_AT_PUBLISHER, Message, Outcome
from django_outbox.utils.logs import logger
from django_outbox.utils.text import counted, describe, one_line, some_ids

MAX_HEADER_ERROR_LENGTH = 1000
"""Maximum number of characters of the error in a header of the copy: RabbitMQ takes all headers in one frame of 128
KiB."""


def copy_failed(
    dead_letters: Publisher | None,
    failed: Sequence[tuple[Message, Outcome]],
    publisher_alias: str,
    *,
    is_late: bool = False,
) -> set[int]:
    """Publish a copy of each failed message, in the order given, and return the ids of the accepted ones.

    A copy has additional headers with the reason. Copies that are not accepted are logged, whatever the dead-letter
    publisher returns or raises. Nothing is copied to the publisher of the failed messages itself.

    Args:
        is_late: whether the claim may end before the copies are published. Then another relay may get other answers for
            these messages, and nothing is copied.
    """
    if dead_letters is None or dead_letters.alias == publisher_alias:
        return set()
    if is_late:
        logger.error(
            f"The dead-letter publisher %(publisher)r gets no copy of {counted(len(failed), 'failed message')} "
            f"({some_ids(message.id for message, _ in failed)}), because more than half of CLAIM_TIMEOUT has passed "
            "since the claim began",
            event="relay.dead_letters_lost",
            publisher=dead_letters.alias,
            count=len(failed),
        )
        return set()
    # For people only, so the relay's clock is good enough.
    failed_at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    copies = [_copy(message, outcome, publisher_alias, failed_at) for message, outcome in failed]
    outcomes, error = call_publisher(dead_letters.publish, copies)
    accepted = {copy.id for copy, outcome in zip(copies, outcomes, strict=True) if outcome is ACCEPTED}
    if missing := [copy.id for copy in copies if copy.id not in accepted]:
        reasons = (outcome.error for outcome in outcomes if outcome is not None and outcome is not ACCEPTED)
        logger.error(
            "The dead-letter publisher %r did not accept %s of failed messages (%s). First error: %s",
            dead_letters.alias,
            counted(len(missing), "copy", "copies"),
            some_ids(missing),
            next(reasons) if error is None else describe(error),
            exc_info=error,
            event="relay.dead_letters_lost",
            publisher=dead_letters.alias,
            count=len(missing),
        )
    return accepted


def _copy(message: Message, outcome: Outcome, publisher_alias: str, failed_at: str) -> Message:
    reason = {
        "outbox-error": one_line(outcome.error, MAX_HEADER_ERROR_LENGTH),
        "outbox-error-class": one_line(outcome.error_class, MAX_HEADER_ERROR_LENGTH),
        "outbox-attempts": message.attempts + 1,
        FAILED_AT_PUBLISHER: publisher_alias,
        "outbox-failed-at": failed_at,
    }
    return message._replace(headers={**message.headers, **reason})
