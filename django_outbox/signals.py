"""Signals for metrics and alerts.

They are sent in the relay's threads, so a receiver should be quick. An exception that it raises is logged and does not
affect deliveries. If it is not an `Exception`, but `SystemExit` for example, receivers that were connected later miss
the signal.
"""

from dataclasses import dataclass
from typing import Any

from django.dispatch import Signal

from django_outbox.messages import Message
from django_outbox.utils.logs import logger
from django_outbox.utils.text import describe, raise_interrupt

__all__ = ["Failure", "batch_settled", "breaker_changed", "messages_failed", "messages_recovered", "phase_finished"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that failed, and why.

    Args:
        message: the message as it was claimed: its `attempts` do not count the last one. For a row that is not a
            message, the fields that could not be read are empty.
        blocks_key: whether the later messages of its key wait until it is requeued or discarded.
        dead_lettered: whether the dead-letter publisher accepted a copy.
    """

    message: Message
    error: str
    error_class: str
    blocks_key: bool
    dead_lettered: bool


phase_finished = Signal()
"""Sent after each phase of a batch.

Arguments: `phase` ("claim", "publish" or "settle"), `using` (database alias), `publisher` (publisher alias), `count`
(messages in the batch), `seconds` (duration of the phase).
"""

batch_settled = Signal()
"""Sent after the commit of each batch.

Arguments: `using` (database alias), `publisher` (publisher alias), `counts` (a mapping of pairs of a result,
"delivered", "retried" or "failed", and a type, to the number of messages), `seconds` (duration of the publish phase).
"""

messages_failed = Signal()
"""Sent after the commit if messages of a batch have failed.

Arguments: `using` (database alias), `publisher` (publisher alias), `failures` (a list of `Failure`).
"""

messages_recovered = Signal()
"""Sent after the commit if messages of a batch were accepted that an earlier attempt had not delivered.

Arguments: `using` (database alias), `publisher` (publisher alias), `messages` (a list of
`django_outbox.messages.Message`).
"""

breaker_changed = Signal()
"""Sent when the circuit breaker of a publisher changes its state.

Arguments: `using` (database alias), `publisher` (publisher alias), `state` ("closed", "open" or "half-open"), `reason`
(why it opened, otherwise empty), `seconds` (how long it stays open, otherwise 0).
"""


def send(signal: Signal, **arguments: Any) -> None:
    """Send a signal. Exceptions that receivers raise are logged and not passed on."""
    try:
        # Django logs each Exception.
        signal.send_robust(sender=None, **arguments)
    except BaseException as error:
        raise_interrupt(error)
        logger.error(
            "A receiver of a signal raised an exception: %(reason)s",
            exc_info=error,
            event="relay.receiver_failed",
            reason=describe(error),
        )
