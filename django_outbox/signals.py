"""Signals that a project may listen to, for its metrics for example."""

from django.dispatch import Signal

step_finished = Signal()
"""Sent in the relay's thread after each step of a batch.

Arguments: `step` ("claim", "publish" or "settle"), `using` (database alias), `publisher`
(alias), `count` (messages in the batch), `seconds` (how long the step took).
"""
