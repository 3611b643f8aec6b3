"""One connection to NATS, to the first server of a cluster that responds, on its own thread and event loop."""

import abc
import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from django_outbox.brokers.connection_thread import ConnectionThread
from django_outbox.brokers.nats.client import JetStreamClient
from django_outbox.brokers.nats.errors import NotUsable, explain
from django_outbox.brokers.nats.options import NatsOptions
from django_outbox.utils.logs import logger

JOIN_TIMEOUT = 15.0
"""Seconds that a connection has to end. Everything that it waits for has a time limit, except the resolver of host
names."""


class NatsConnection(ConnectionThread):
    """One connection; its thread has an event loop, which reads messages."""

    def __init__(self, options: NatsOptions) -> None:
        super().__init__(options.alias, "nats")
        self._options = options
        self._client: JetStreamClient
        self._server = "NATS"
        self._is_connected = False
        self._is_closing = False
        self._opening: asyncio.Task[None]
        # asyncio itself may drop tasks that nothing refers to.
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._has_ended = False

    # Any thread

    def call(self, work: Callable[[], None]) -> bool:
        """Call a function on the connection's thread, without waiting for it; False if the connection has ended."""
        with self._lock:
            if not self._has_ended:
                self._loop.call_soon_threadsafe(work)
            return not self._has_ended

    def close(self) -> None:
        self.call(self._close)
        self._thread.join(JOIN_TIMEOUT)

    # The connection's thread

    def _run(self) -> None:
        self._opening = self._loop.create_task(self._open())
        try:
            self._loop.run_until_complete(self._main())
        finally:
            with self._lock:
                self._has_ended = True
            # What other threads have asked for in the meantime is done first.
            self._loop.run_until_complete(_finish())
            self._loop.close()

    async def _main(self) -> None:
        try:
            await self._opening
            self._is_ready_or_ended.set()
            await self._work()
        except NotUsable as error:
            self._end(str(error))
        except asyncio.CancelledError:
            # `_close` has cancelled `_opening`.
            pass
        except Exception as error:
            self._fail(error)
        self._end(f"the {self.kind} was closed")
        if self._is_connected:
            await self._client.abandon()

    async def _open(self) -> None:
        """Connect to one server after another, in random order, so that relays spread over the cluster."""
        reasons = []
        for server in random.sample(self._options.nodes, len(self._options.nodes)):
            client = JetStreamClient(
                self._options, on_message=self._on_message, on_denied=self._on_denied, on_closed=self._on_closed
            )
            try:
                await asyncio.wait_for(client.open(server), self._options.node_timeout)
            except Exception as error:
                reasons.append(f"{server.address}: {explain(error)}")
                await client.abandon()
            except asyncio.CancelledError:
                await client.abandon()
                raise
            else:
                self._client = client
                self._server = f"NATS at {server.address}"
                self._is_connected = True
                return
        raise NotUsable(f"cannot connect to NATS at {'; '.join(reasons)}")

    @abc.abstractmethod
    async def _work(self) -> None:
        """Use the open connection until it ends."""

    @abc.abstractmethod
    def _on_message(self, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """Take a message that arrived in the inbox."""

    @abc.abstractmethod
    def _on_denied(self, subject: str) -> None:
        """Note that the user may not publish to a subject, which is in lower case."""

    def _on_closed(self, error: BaseException | None) -> None:
        """Note that the server or the network has ended the connection."""
        reason = "" if error is None else f": {explain(error)}"
        self._end(f"the connection to {self._server} was lost{reason}")

    @abc.abstractmethod
    def _close(self) -> None:
        """End the connection, even while it is being opened."""

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, OSError):
            logger.error(
                "%(subject)s: the connection to NATS failed",
                exc_info=error,
                event="broker.connection_failed",
                subject=self._owner,
            )
        how = "was lost" if isinstance(error, OSError) else "failed"
        self._end(f"the connection to {self._server} {how}: {explain(error)}")

    def _release(self, error: str) -> None:
        if self._is_connected and not self._is_closing:
            # It may be waiting until the server reads.
            self._client.abort()
        self._changed.set()

    async def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; whatever may meet it sets `_changed`."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)


async def _finish() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
