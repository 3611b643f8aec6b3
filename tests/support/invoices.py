"""A publisher that stands for a handler: it writes an invoice for each order, once."""

from collections.abc import Sequence

from django.db import connections, transaction

from django_outbox.inbox import once
from django_outbox.messages import ACCEPTED, Message, Outcome
from django_outbox.publishers.base import Publisher

TABLE = "inbox_test_invoice"
"""It has no unique constraint, so that an invoice that was written twice is found."""


class InvoicePublisher(Publisher):
    """Writes each invoice in a transaction together with the record of `once`."""

    def __init__(self, alias: str, *, using: str) -> None:
        super().__init__(alias)
        self._using = using

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        using = self._using
        for message in messages:
            with transaction.atomic(using=using):
                if once(message.message_id, "billing", using=using):
                    with connections[using].cursor() as cursor:
                        cursor.execute(f"INSERT INTO {TABLE} (message_id) VALUES (%s)", [message.message_id])
        return [ACCEPTED] * len(messages)
