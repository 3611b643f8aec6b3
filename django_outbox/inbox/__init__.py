"""The inbox: an app that handles each message once, and brings a broker's messages into the outbox's own table.

    broker -> run_inbox -> OutboxMessage row -> relay -> handler
              |-- one transaction, then the acknowledgement

`once` deduplicates messages in a consumer that you write; `receive` stores messages that you read with another library;
`manage.py run_inbox` is a consumer that is ready to run.

    from django_outbox.inbox import once

    with transaction.atomic():
        if once(message_id, consumer="billing"):
            write_invoice(payload)
"""

from typing import TYPE_CHECKING

from django_outbox.utils.lazy import lazily

if TYPE_CHECKING:
    from django_outbox.inbox.deduplication import once, once_many
    from django_outbox.inbox.receiving import receive
    from django_outbox.inbox.storing import Received, Rejected

__all__ = ["Received", "Rejected", "once", "once_many", "receive"]

# Django imports this package before models can be imported.
__getattr__ = lazily(
    __name__,
    {
        "deduplication": ["once", "once_many"],
        "receiving": ["receive"],
        "storing": ["Received", "Rejected"],
    },
)
