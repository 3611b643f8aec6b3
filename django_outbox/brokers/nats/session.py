"""The life of one connection to NATS, on the thread of its event loop."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence

from nats.errors import StaleConnectionError

from django_outbox.brokers.nats.api import Api
from django_outbox.brokers.nats.batch import Batch
from django_outbox.brokers.nats.client import Client
from django_outbox.brokers.nats.connector import NotConnected, connect
from django_outbox.brokers.nats.encoding import Encoded
from django_outbox.brokers.nats.errors import blames_message, denied_subject, explain
from django_outbox.brokers.nats.options import ConnectionOptions, Server
from django_outbox.brokers.nats.responses import BUSY_WAIT, NO_RESPONDERS, read_response
from django_outbox.brokers.nats.streams import Streams
from django_outbox.brokers.nats.tasks import Tasks
from django_outbox.brokers.suspensions import Suspensions
from django_outbox.logs import logger
from django_outbox.messages import Outcome, Verdict, rejected, retry_later, set_aside, unanswered

WRITE_SIZE = 64 * 1024
"""Bytes that are written at once."""

MAX_SUBJECTS = 20
"""Maximum number of subjects that JetStream is asked about at once; messages with others are set aside meanwhile."""

STALLED_WAIT = 15.0
"""Seconds for which a subject is first set aside if its messages are not confirmed, because each trial holds up a batch
for as long as the publisher waits for a confirmation."""

FORGET_AFTER = 600.0
"""Seconds without a message after which such a subject is forgotten."""

Sent = tuple[Batch, int]
"""A batch, and the index of one of its messages."""


class Session:
    """Connects, publishes and ends; a new connection needs a new session.

    All methods run on the connection's thread.

    Args:
        options: the options of the connection.
        max_in_flight: maximum number of messages without a response.

    Attributes:
        is_settled: set when the session is connected, or has failed; any thread may wait for it.
        error: the reason why the session ended; blank until then.
    """

    def __init__(self, options: ConnectionOptions, max_in_flight: int) -> None:
        self.is_settled = threading.Event()
        self.error = ""
        self._client: Client
        self._options = options
        self._max_in_flight = max_in_flight
        self._queue: deque[Batch] = deque()
        self._batches: set[Batch] = set()
        self._in_flight: dict[bytes, Sent] = {}
        self._unrouted: list[Sent] = []
        self._suspensions: Suspensions[bytes] = Suspensions(
            f"Publisher {options.alias!r}", lambda subject: f"'{subject.decode()}'", forget_after=FORGET_AFTER
        )
        self._address = "NATS"
        self._inbox = b""
        self._last_token = 0
        self._is_connected = False
        self._is_examining = False
        self._tasks = Tasks(self._on_failure)
        self._has_work = asyncio.Event()
        self._has_room = asyncio.Event()
        self._connecting: asyncio.Task[tuple[Client, Server]]

    async def run(self) -> None:
        """Connect, and publish until the connection ends."""
        try:
            await self._run()
        except Exception as error:
            logger.exception("Publisher %r: the connection to NATS failed", self._options.alias)
            self._end(f"the connection to NATS failed: {explain(error)}")

    async def _run(self) -> None:
        self._tasks.start(self._watch())
        connecting = connect(self._options, self._make_client, self._on_reply)
        self._connecting = asyncio.get_running_loop().create_task(connecting)
        try:
            self._client, server = await self._connecting
        except NotConnected as error:
            self._end(str(error))
            return
        except asyncio.CancelledError:
            return
        self._address = server.address
        self._inbox = self._client.inbox
        logger.info("Publisher %r: connected to NATS at %s", self._options.alias, self._address)
        self._is_connected = True
        self.is_settled.set()
        try:
            await self._send()
        except OSError as error:
            self._end(f"the connection to NATS at {self._address} was lost: {explain(error)}")
        await self._client.abandon()

    def submit(self, batch: Batch) -> None:
        """Accept a batch, to be sent as soon as possible."""
        if self.error:
            batch.set_missing(unanswered(self.error))
        else:
            self._batches.add(batch)
            self._queue.append(batch)
            self._has_work.set()

    async def check(self, stream: str, subject: str) -> str:
        """Return what keeps messages from being stored; see `Streams.check`."""
        return self.error or await self._streams().check(stream, subject)

    def close(self) -> None:
        """End the connection; messages without an outcome are unanswered."""
        self._end("the publisher was closed")
        self._connecting.cancel()

    def _streams(self) -> Streams:
        return Streams(Api(self._client, self._options))

    def _make_client(self) -> Client:
        return Client(on_error=self._on_error, on_closed=self._on_closed)

    def _on_failure(self, error: BaseException) -> None:
        logger.error("Publisher %r: the connection to NATS failed", self._options.alias, exc_info=error)
        self._end(f"the connection to NATS failed: {explain(error)}")

    # Sending

    async def _send(self) -> None:
        while not self.error:
            while self._queue:
                await self._send_batch(self._queue.popleft())
            self._has_work.clear()
            await self._has_work.wait()

    async def _send_batch(self, batch: Batch) -> None:
        frames: list[bytes] = []
        size = 0
        max_payload = self._client.max_payload
        for index, encoded in batch.encoded.items():
            if batch.outcomes[index] is not None:
                continue
            if encoded.size > max_payload:
                error = f"headers and payload are {encoded.size:,} bytes; the server's max_payload is {max_payload:,}"
                self._set_outcome((batch, index), rejected(error, error_class="nats.too_large"))
                continue
            if self._suspensions and not self._suspensions.begin_trial(encoded.subject):
                outcome = self._suspensions.outcome(encoded.subject)
                if outcome is not None:
                    self._set_outcome((batch, index), outcome)
                    continue
            if len(self._in_flight) >= self._max_in_flight:
                await self._write(frames, batch)
                frames, size = [], 0
                await self._wait_for_room()
            frames.append(self._frame(encoded, (batch, index)))
            size += encoded.size
            if size >= WRITE_SIZE:
                await self._write(frames, batch)
                frames, size = [], 0
        await self._write(frames, batch)

    def _frame(self, encoded: Encoded, sent: Sent) -> bytes:
        """Return a message as NATS's protocol has it: https://docs.nats.io/reference/reference-protocols/nats-protocol."""
        subject, headers, payload = encoded
        self._last_token += 1
        token = b"%d" % self._last_token
        self._in_flight[token] = sent
        size = len(headers)
        return b"HPUB %b %b%b %d %d\r\n%b%b\r\n" % (
            subject,
            self._inbox,
            token,
            size,
            size + len(payload),
            headers,
            payload,
        )

    async def _write(self, frames: list[bytes], batch: Batch) -> None:
        if frames:
            await self._client.write(frames)
            batch.progress_at = time.monotonic()

    async def _wait_for_room(self) -> None:
        while len(self._in_flight) >= self._max_in_flight and not self.error:
            self._has_room.clear()
            await self._has_room.wait()

    # Responses

    def _on_reply(self, subject: bytes, _reply: bytes, data: bytes, headers: bytes | None) -> None:
        token = subject[len(self._inbox) :]
        sent = self._in_flight.get(token)
        if sent is None:
            return
        if headers is not None and headers.startswith(NO_RESPONDERS):
            del self._in_flight[token]
            if not self._unrouted:
                self._tasks.start(self._judge_unrouted())
            self._unrouted.append(sent)
        elif (outcome := read_response(data)) is not None:
            del self._in_flight[token]
            if self._suspensions:
                self._suspensions.end(_subject(sent))
            self._set_outcome(sent, outcome)
        self._has_room.set()

    def _set_outcome(self, sent: Sent, outcome: Outcome) -> None:
        batch, index = sent
        batch.set_outcome(index, outcome)
        batch.progress_at = time.monotonic()
        if not batch.missing:
            self._batches.discard(batch)

    async def _judge_unrouted(self) -> None:
        # All that the server has responded so far is judged together.
        await asyncio.sleep(0)
        unrouted, self._unrouted = self._unrouted, []
        await self._judge(unrouted, stalled=False)

    async def _judge(self, messages: Sequence[Sent], *, stalled: bool) -> None:
        """Find out why these messages are not confirmed, and set their outcomes."""
        subjects = list(dict.fromkeys(_subject(sent) for sent in messages))[:MAX_SUBJECTS]
        outcomes = await asyncio.gather(
            *(self._streams().judge(subject.decode(), stalled=stalled) for subject in subjects)
        )
        by_subject = dict(zip(subjects, outcomes, strict=True))
        for subject, outcome in by_subject.items():
            if stalled and outcome.verdict is Verdict.DEFERRED:
                self._suspensions.begin(subject, outcome.error, outcome.error_class, least=STALLED_WAIT)
            elif outcome.verdict is Verdict.REJECTED:
                self._suspensions.end(subject)
        not_asked = set_aside("no stream has confirmed the message", BUSY_WAIT, error_class="nats.stalled")
        for sent in messages:
            self._suspensions.end_trial(_subject(sent))
            self._set_outcome(sent, by_subject.get(_subject(sent), not_asked))

    def _on_error(self, error: Exception) -> None:
        subject = denied_subject(error)
        if subject is None:
            # The end of the connection is reported in another way.
            if not isinstance(error, StaleConnectionError | OSError):
                logger.warning("Publisher %r: NATS at %s: %s", self._options.alias, self._address, explain(error))
            return
        # There is no response to these messages.
        text = "the user may not publish to this subject; permit it in the server's configuration of the user"
        denied = [token for token, sent in self._in_flight.items() if _subject(sent).decode().lower() == subject]
        for token in denied:
            sent = self._in_flight.pop(token)
            self._suspensions.end(_subject(sent))
            self._set_outcome(sent, retry_later(text, error_class="nats.not_permitted"))

    # Time

    async def _watch(self) -> None:
        """Notice messages without a response, and end the connection if the server does not respond at all."""
        stall_timeout = self._options.stall_timeout
        interval = stall_timeout / 5
        while True:
            await asyncio.sleep(interval)
            self._suspensions.update()
            now = time.monotonic()
            stalled = set()
            for batch in [*self._batches]:
                if now - batch.submitted_at > self._options.timeout - 2 * interval:
                    self._expire(batch)
                elif self._is_connected and now - batch.progress_at > stall_timeout:
                    stalled.add(batch)
            if stalled and not self._is_examining:
                self._is_examining = True
                self._tasks.start(self._examine(stalled))

    async def _examine(self, stalled: Collection[Batch]) -> None:
        """Probe the server; if it responds, find out why it has not responded to the messages of these batches."""
        try:
            await self._examine_messages(stalled)
        finally:
            self._is_examining = False

    async def _examine_messages(self, stalled: Collection[Batch]) -> None:
        before = {token for token, (batch, _index) in self._in_flight.items() if batch in stalled}
        try:
            await asyncio.wait_for(self._client.flush(), self._options.stall_timeout)
        except Exception:
            self._end(f"NATS at {self._address} does not respond")
            return
        # The server has read all of these messages, and sent its responses first.
        left = [sent for token in before if (sent := self._in_flight.pop(token, None)) is not None]
        self._has_room.set()
        await self._judge(left, stalled=True)

    def _expire(self, batch: Batch) -> None:
        self._batches.discard(batch)
        for token in [token for token, sent in self._in_flight.items() if sent[0] is batch]:
            del self._in_flight[token]
        for subject in {encoded.subject for encoded in batch.encoded.values()}:
            self._suspensions.end_trial(subject)
        self._has_room.set()
        batch.set_missing(unanswered(f"NATS at {self._address} did not confirm the message in time"))

    # Ending

    def _on_closed(self, error: BaseException | None) -> None:
        reason = "" if error is None else f": {explain(error)}"
        text = f"the connection to NATS at {self._address} was lost{reason}"
        if blames_message(error):
            for batch in {batch for batch, _index in self._in_flight.values()}:
                self._batches.discard(batch)
                batch.refuse(f"NATS ended the connection because of a message{reason}")
        self._end(text)

    def _end(self, error: str) -> None:
        if self.error:
            return
        self.error = error
        if self._is_connected:
            # It may be waiting until the server reads.
            self._client.abort()
        for batch in self._batches:
            batch.set_missing(unanswered(self.error))
        self._batches.clear()
        self._in_flight.clear()
        self._queue.clear()
        self.is_settled.set()
        self._has_work.set()
        self._has_room.set()


def _subject(sent: Sent) -> bytes:
    batch, index = sent
    return batch.encoded[index].subject
