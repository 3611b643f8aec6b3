"""Who else hears of failed messages: the dead-letter publisher by a copy, and the project by a signal."""

import datetime
import logging
from collections.abc import Sequence

from django_outbox.databases import Settlement
from django_outbox.messages import Message, Outcome, Verdict
from django_outbox.publishers import Publisher
from django_outbox.signals import Failure, messages_failed, messages_recovered

logger = logging.getLogger("django_outbox")

MAX_ERROR_LENGTH = 1000
"""How many characters of the error go into a header of the copy: RabbitMQ takes all headers in one frame of 128 KiB."""


def copy_failed(publisher: Publisher | None, failed: Sequence[tuple[Message, Outcome]], source_alias: str) -> set[int]:
    """Publish a copy of each message that is given up, in the order given, and return the ids that were accepted.

    The copy is the message itself, with headers added that begin with `outbox-` and say why it failed. It never raises:
    what is not accepted is logged. It takes as long as `publisher` takes for a batch.

    Args:
        publisher: the dead-letter publisher; None, or the one that refused them, copies nothing.
        failed: the messages, each with the outcome of its last attempt.
        source_alias: the alias of the publisher that refused them.
    """
    if publisher is None or not failed or publisher.alias == source_alias:
        return set()
    # For the reader's eyes alone, so that the relay's clock will do.
    failed_at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    copies = [_copy(message, outcome, source_alias, failed_at) for message, outcome in failed]
    try:
        outcomes = publisher.publish(copies)
    except Exception:
        _log_missing(publisher, copies, "it raised an exception", exc_info=True)
        return set()
    if len(outcomes) != len(copies):
        _log_missing(publisher, copies, f"it gave {len(outcomes)} outcomes for {len(copies)} messages")
        return set()
    accepted = {copy.id for copy, outcome in zip(copies, outcomes, strict=True) if outcome.verdict is Verdict.ACCEPTED}
    missing = [copy for copy in copies if copy.id not in accepted]
    if missing:
        reason = next(outcome.error for outcome in outcomes if outcome.verdict is not Verdict.ACCEPTED)
        _log_missing(publisher, missing, reason)
    return accepted


def _copy(message: Message, outcome: Outcome, source_alias: str, failed_at: str) -> Message:
    why = {
        "outbox-error": _short(outcome.error),
        "outbox-error-class": _short(outcome.error_class),
        "outbox-attempts": message.attempts + 1,
        "outbox-publisher": source_alias,
        "outbox-failed-at": failed_at,
    }
    return message._replace(headers={**message.headers, **why})


def _short(text: str) -> str:
    cut = text if len(text) <= MAX_ERROR_LENGTH else text[: MAX_ERROR_LENGTH - 1] + "…"
    # An error may quote what is no text in UTF-8, and must not make its own copy undeliverable.
    return cut.encode("utf-8", "replace").decode()


def _log_missing(publisher: Publisher, copies: Sequence[Message], reason: str, *, exc_info: bool = False) -> None:
    ids = ", ".join(str(copy.id) for copy in copies[:10]) + (", …" if len(copies) > 10 else "")
    logger.error(
        "The dead-letter publisher %r took no copy of %d failed messages (ids %s), the first because: %s",
        publisher.alias,
        len(copies),
        ids,
        reason,
        exc_info=exc_info,
    )


def signal_settled(publisher: str, using: str, messages: Sequence[Message], settlement: Settlement) -> None:
    """Send the signals for what failed and what recovered in a batch; call it when the settlement is committed.

    Args:
        publisher: the alias of the publisher.
        using: the database alias.
        messages: the batch; those that `settlement` does not name are passed over.
        settlement: what became of it.
    """
    # Django logs what a receiver raises.
    if settlement.failed:
        batch = {message.id: message for message in messages}
        failures = [
            Failure(batch[row.id], row.error, row.error_class, row.holds_key, row.dead_lettered)
            for row in settlement.failed
        ]
        messages_failed.send_robust(sender=None, using=using, publisher=publisher, failures=failures)
    recovered = [message for message in messages if message.attempts or message.error_class]
    if recovered:
        processed = set(settlement.processed)
        recovered = [message for message in recovered if message.id in processed]
    if recovered:
        messages_recovered.send_robust(sender=None, using=using, publisher=publisher, messages=recovered)
