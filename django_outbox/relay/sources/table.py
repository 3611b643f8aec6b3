"""Claims from the table, by queries: each one looks for due messages from where the last one ended."""

import sys
from collections.abc import Iterator, Set
from contextlib import AbstractContextManager, contextmanager

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.conf import OutboxSettings
from django_outbox.messages import Message
from django_outbox.relay.watchdog import DatabaseCalls
from django_outbox.stores import Claim, ClaimRequest, Lease, Settlement, Store, get_store
from django_outbox.stores.claiming import Cursor
from django_outbox.stores.clock import boot_time
from django_outbox.stores.rows import NONE


class TableSource:
    """Claims and settles the batches of one worker, and remembers where its claims stand.

    Args:
        settings: the maximum bytes of a batch, the claim timeout, and whether processed messages are deleted.
        transactional: whether the publisher writes in the transaction that settles a message.
        calls: watches the database calls of the claims.
    """

    def __init__(
        self,
        using: str,
        publisher_alias: str,
        settings: OutboxSettings,
        *,
        transactional: bool = False,
        calls: DatabaseCalls | None = None,
    ) -> None:
        self.using = using
        self.publisher_alias = publisher_alias
        self.settings = settings
        self.claim_timeout = settings.claim_timeouts.get(publisher_alias, settings.claim_timeout)
        self.transactional = transactional
        self._calls = calls or DatabaseCalls()
        self._cursor = Cursor()
        self._late_at = 0.0
        self.deletes_processed = settings.deletes_processed

    @property
    def table(self) -> "TableSource":
        """The source of messages in the table, which is asked for what only concerns those."""
        return self

    def claim(self, limit: int, refused: Set[int] = NONE, *, passed: str = "") -> AbstractContextManager[Claim]:
        """Claim at most `limit` due messages for as long as the context is open.

        Leaving the context without `settle` returns the whole batch as it was. For the others, see `ClaimRequest`.
        """
        request = ClaimRequest(
            self.publisher_alias,
            self._cursor,
            limit,
            max_bytes=self.settings.batch_bytes,
            max_seconds=self.claim_timeout,
            transactional=self.transactional,
            passed=passed,
            refused=refused,
        )
        return self.open_claim(self.store.claim(request))

    def claim_one(self, message: Message) -> AbstractContextManager[Claim]:
        """Claim a message that was claimed before, if it has not changed and no other relay has it."""
        return self.open_claim(self.store.claim_one(self.publisher_alias, message, max_seconds=self.claim_timeout))

    def lease(self, message: Message) -> Lease | None:
        """Take the lease of a message of the open claim, or return None if another relay works on it or on its key."""
        with self.watch():
            return self.store.lease(self.publisher_alias, message, seconds=self.claim_timeout)

    def renew(self, lease: Lease) -> bool:
        """Let a lease last from now on; return False if it is lost. Any thread may call it, on its own connection."""
        with self.watch():
            return lease.renew()

    def claim_leased(self, message: Message, lease: Lease) -> AbstractContextManager[Claim]:
        """Claim a message that this worker has leased, if it has not lost the lease."""
        return self.open_claim(self.store.claim_leased(message, lease, max_seconds=self.claim_timeout))

    def follow(self, claim: Claim, limit: int) -> Claim:
        """Return an open claim with what has arrived since, up to `limit` messages: nothing does."""
        return claim

    @property
    def is_late(self) -> bool:
        """Whether the last claim may end before something that is published now can be settled."""
        return boot_time() > self._late_at

    def settle(self, claim: Claim, settlement: Settlement) -> dict[int, str]:
        """Write the new states of messages. Return why the others cannot be changed, by their ids."""
        with self.watch():
            self.store.settle(claim, settlement, delete_processed=self.deletes_processed)
        return {}

    def keep_processed(self) -> bool:
        """Leave processed messages to the purge from now on; return whether they were deleted until now."""
        deleted, self.deletes_processed = self.deletes_processed, False
        return deleted

    def find_refused(self, settlement: Settlement) -> dict[int, str]:
        """Return why the database refuses to write the new states of some messages, by their ids."""
        with self.watch():
            return self.store.find_refused(settlement)

    def find_paused_types(self) -> frozenset[str]:
        with self.watch():
            return self.store.find_paused_types(self.publisher_alias)

    def rewind(self) -> None:
        """Look for messages without a key from the beginning again, because some went back as they were."""
        self._cursor.rewind()

    def announce(self) -> None:
        """Make the next claim without a look first, because a wake-up says that it will find something."""
        self._cursor.announce()

    @property
    def exhausted(self) -> bool:
        """Whether the last claim found nothing, and nothing was due anywhere."""
        return self._cursor.exhausted

    @property
    def caught_up(self) -> bool:
        """Whether the last claim has read all that was due, although it found something."""
        return self._cursor.caught_up

    @property
    def complete(self) -> bool:
        """Whether the last claim looked at every key; if not, the next one continues."""
        return self._cursor.complete

    @property
    def lags(self) -> bool:
        """Whether the next claim should follow at once, although this one found nothing."""
        return self._cursor.lags

    def longest_wait(self, poll_interval: float) -> float:
        """Return the seconds that an idle worker may wait for a wake-up."""
        return poll_interval

    def sweep_next(self) -> None:
        """Make the next claim look everywhere, regardless of the cost."""
        self._cursor.sweep_next()

    @property
    def wake_ups(self) -> frozenset[str]:
        """The names of the wake-ups that end an idle wait of its worker."""
        return frozenset([self.publisher_alias])

    def watch(self) -> AbstractContextManager[None]:
        """Watch the database calls of a block, and end the connection of one that takes longer than a claim may."""
        return self._calls.watch(self.connection, self.claim_timeout)

    def close(self) -> None:
        """Release what it holds, apart from the database connection."""
        # A session that is lost has nothing to be restored, and its server may be unavailable.
        if self.connection.connection is not None:
            with self.watch():
                self.store.restore_session()

    # For claims of other kinds, which have the same limits.

    @property
    def connection(self) -> BaseDatabaseWrapper:
        # Looked up each time, because a thread's connection may be replaced.
        return connections[self.using]

    @property
    def store(self) -> Store:
        return get_store(self.connection)

    def begin_claim(self) -> None:
        # Before the claim, because the process may be stopped right after it.
        self._late_at = boot_time() + self.claim_timeout / 2

    def open_claim(self, claiming: AbstractContextManager[Claim]) -> AbstractContextManager[Claim]:
        """Begin the time of a claim, and watch how it begins and ends, but not what happens in between."""
        self.begin_claim()
        return self._watched(claiming)

    @contextmanager
    def _watched(self, claiming: AbstractContextManager[Claim]) -> Iterator[Claim]:
        with self.watch():
            claim = claiming.__enter__()
        try:
            yield claim
        except BaseException:
            with self.watch():
                if not claiming.__exit__(*sys.exc_info()):
                    raise
        else:
            with self.watch():
                claiming.__exit__(None, None, None)
