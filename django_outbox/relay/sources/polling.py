"""Claims by queries: each one looks for due messages from where the last one ended."""

from contextlib import AbstractContextManager

from django.db import connections

from django_outbox.conf import OutboxSettings
from django_outbox.messages import Message
from django_outbox.relay.sources.base import Source
from django_outbox.stores import Claim, Settlement, Store, get_store
from django_outbox.stores.cursor import Cursor


class PollingSource(Source):
    """Claims the messages of one publisher by queries.

    Args:
        using: the database alias.
        publisher_alias: the publisher whose messages are claimed.
        settings: the maximum bytes of a batch, the claim timeout, and whether processed messages are deleted.
        transactional: whether the publisher writes in the transaction of the claim.
    """

    def __init__(
        self, using: str, publisher_alias: str, settings: OutboxSettings, *, transactional: bool = False
    ) -> None:
        self.using = using
        self._transactional = transactional
        self._publisher_alias = publisher_alias
        self._settings = settings
        self._cursor = Cursor()

    def claim(self, limit: int) -> AbstractContextManager[Claim]:
        return self._store.claim(
            self._publisher_alias,
            limit=limit,
            max_bytes=self._settings.batch_bytes,
            max_seconds=self._settings.claim_timeout,
            cursor=self._cursor,
            transactional=self._transactional,
        )

    def claim_one(self, message: Message) -> AbstractContextManager[Claim]:
        return self._store.claim_one(self._publisher_alias, message, max_seconds=self._settings.claim_timeout)

    def settle(self, claim: Claim, settlement: Settlement) -> None:
        self._store.settle(claim, settlement, delete_processed=self._settings.deletes_processed)

    def rewind(self) -> None:
        self._cursor.rewind()

    @property
    def exhausted(self) -> bool:
        return self._cursor.exhausted

    @property
    def complete(self) -> bool:
        return self._cursor.complete

    def sweep_next(self) -> None:
        self._cursor.sweep_next()

    @property
    def _store(self) -> Store:
        # Looked up each time, because a thread's connection may be replaced.
        return get_store(connections[self.using])
