"""Local handlers: functions of this project that a relay calls with a message.

    from django_outbox.handlers import handler

    @handler("order.created")
    def send_receipt(payload, message):
        Receipt.objects.create(order_id=payload["id"])

A handler is called in the transaction of the message's claim, unless its publisher has the option `transaction=False`.
What it writes to the database of the outbox is committed together with the message's new state, or not at all: its
effect happens exactly once. Handlers are discovered in the module `handlers` of each installed app.
"""

from django_outbox.exceptions import HandlerTimeout, Reject, RetryLater
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.handlers.registry import Handler, handler

__all__ = ["Handler", "HandlerTimeout", "HandlersPublisher", "Reject", "RetryLater", "handler"]
