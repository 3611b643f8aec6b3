"""Signals that a project may listen to, for its metrics and alerts for example.

They are sent in the relay's thread, so a receiver should be quick. What it raises is logged, and disturbs no delivery.
"""

from dataclasses import dataclass

from django.dispatch import Signal

from django_outbox.messages import Message


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that was given up, and why.

    Args:
        message: the message as it was claimed: its `attempts` are those before the last one.
        error: the reason in words.
        error_class: what kind of error it is.
        holds_key: whether the later messages of its key wait until it is requeued or discarded.
        dead_lettered: whether the dead-letter publisher accepted a copy.
    """

    message: Message
    error: str
    error_class: str
    holds_key: bool
    dead_lettered: bool


step_finished = Signal()
"""Sent after each step of a batch.

Arguments: `step` ("claim", "publish" or "settle"), `using` (database alias), `publisher`
(alias), `count` (messages in the batch), `seconds` (how long the step took).
"""

messages_failed = Signal()
"""Sent when messages of a batch were given up, after that is committed.

Arguments: `using` (database alias), `publisher` (alias), `failures` (a list of `Failure`).
"""

messages_recovered = Signal()
"""Sent when messages of a batch were accepted whose last attempt had been refused, after that is committed.

Arguments: `using` (database alias), `publisher` (alias), `messages` (a list of `django_outbox.messages.Message`).
"""

breaker_changed = Signal()
"""Sent in the relay's thread when the circuit breaker of a publisher changes its state.

Arguments: `using` (database alias), `publisher` (alias), `state` ("closed", "open" or "half-open"), `reason` (why it
opened, else blank), `seconds` (how long it stays open, else 0).
"""
