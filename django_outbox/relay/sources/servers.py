"""Positions of streams that were copied from another server, and servers that write messages of another one."""

import time
from dataclasses import replace
from typing import cast

from django_outbox.db.snapshots import NOTHING
from django_outbox.exceptions import RelayUnavailable
from django_outbox.relay.sources.table import TableSource
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.stream import StoredPosition, Stream
from django_outbox.utils.logs import logger

RECOVERED = 5000
"""Maximum number of messages that one transaction moves to the table after a restore."""

CHECK_INTERVAL = 10.0
"""Seconds between two looks for a subscription that writes messages of another server."""


class ServerCheck:
    """Checks that a position is one of this server.

    A dump that is restored into another server has numbers of transactions that mean nothing there. The messages that
    such a position has not passed become due in the table, and the position begins again.

    Attributes:
        is_checked: whether the position was found to be one of this server; false when a session begins.
    """

    def __init__(self, table: TableSource) -> None:
        self.is_checked = False
        self._table = table
        self._server = ""
        self._check_at = 0.0

    def check(self, stream: Stream, position: StoredPosition) -> StoredPosition | None:
        """Return the position, as it is on this server; None while messages of another one are being settled.

        Raises:
            RelayUnavailable: a subscription writes messages, with numbers that this server's position may be past.
        """
        if self.is_checked and time.monotonic() < self._check_at and position.server == self._server:
            return position
        if subscriptions := cast(PostgreSQLStore, self._table.store).find_subscriptions():
            raise RelayUnavailable(
                f"a subscription writes messages of another server into the database {self._table.using!r}, and a "
                "stream would miss some. Stop the relays of that server, wait until its messages have arrived, "
                f"and run: DROP SUBSCRIPTION {', '.join(subscriptions)}"
            )
        self._check_at = time.monotonic() + CHECK_INTERVAL
        server = stream.find_server()
        if position.server and position.server != server:
            if stream.settle_in_table(position, RECOVERED):
                return None
            logger.warning(
                "Publisher %(publisher)r: the position of its stream was copied from another server to database "
                "%(database)r. Messages that it had not passed are due in the table; the others are marked as "
                "processed. Messages that the other server's relay delivered after the copy are sent again.",
                event="relay.position_copied",
                publisher=self._table.publisher_alias,
                database=self._table.using,
            )
            position = replace(position, passed=NOTHING, page="", page_start=0, page_end=0, last_id=0)
        if position.server != server:
            # It is looked at again, because this transaction may be rolled back.
            return stream.move(replace(position, server=server))
        self.is_checked, self._server = True, server
        return position
