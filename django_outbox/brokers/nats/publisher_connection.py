"""The publisher's connection: it sends the messages of all threads, and reads the responses of their streams."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

from django_outbox.brokers.call import PendingCall
from django_outbox.brokers.nats.connection import NatsConnection
from django_outbox.brokers.nats.encoding import NatsMessage, encode_hpub
from django_outbox.brokers.nats.errors import (
    BUSY_WAIT,
    NO_RESPONDERS,
    NoAnswer,
    NotPermitted,
    blames_message,
    explain,
    read_response,
)
from django_outbox.brokers.nats.options import NatsOptions
from django_outbox.brokers.suspensions import Suspensions
from django_outbox.messages import Message, Outcome, OutcomeKind, rejected, retry_later, set_aside, unanswered
from django_outbox.utils.logs import logger

WRITE_SIZE = 64 * 1024
"""Bytes that are written at once."""

STALLED_WAIT = 15.0
"""Seconds for which a subject is first set aside if its messages are not confirmed, because each trial holds up a call
for as long as the publisher waits for a confirmation."""


class NatsCall(PendingCall[Message, NatsMessage]):
    """The messages of one call of `publish`. Progress is that one of them was sent or got an outcome."""

    def __init__(self, messages: Sequence[Message], encode: Callable[[Message], NatsMessage]) -> None:
        super().__init__(messages, encode, carrier="NATS", error_class="nats")
        self.submitted_at = self.progress_at = time.monotonic()


Sent = tuple[NatsCall, int]
"""A call, and the index of one of its messages."""


class NatsPublisherConnection(NatsConnection):
    """Publishes with at most `max_in_flight` unacknowledged messages."""

    kind: ClassVar[str] = "publisher"

    def __init__(self, options: NatsOptions, max_in_flight: int) -> None:
        super().__init__(options)
        self._max_in_flight = max_in_flight
        self._queue: deque[NatsCall] = deque()
        self._calls: set[NatsCall] = set()
        self._in_flight: dict[bytes, Sent] = {}
        self._unrouted: list[Sent] = []
        self._suspensions: Suspensions[bytes] = Suspensions(self._owner, lambda subject: f"'{subject.decode()}'")
        self._inbox = b""
        self._last_token = 0
        self._is_examining = False
        self._thread.start()

    # Any thread

    def submit(self, call: NatsCall) -> bool:
        """Queue messages for sending. Returns False if the connection has ended."""
        return self.call(lambda: self._submit(call))

    # The connection's thread

    async def _open(self) -> None:
        self._start(self._watch())
        await super()._open()
        self._inbox = self._client.inbox
        logger.info(
            "%(subject)s: connected to %(address)s", event="broker.connected", subject=self._owner, address=self._server
        )

    async def _work(self) -> None:
        while not self.error:
            while self._queue:
                await self._send(self._queue.popleft())
            await self._wait(lambda: bool(self._queue or self.error))

    def _submit(self, call: NatsCall) -> None:
        if self.error:
            call.set_missing(unanswered(self.error))
        else:
            self._calls.add(call)
            self._queue.append(call)
            self._changed.set()

    async def _send(self, call: NatsCall) -> None:
        frames: list[bytes] = []
        size = 0
        max_payload = self._client.max_payload
        for index, (subject, headers, payload) in call.encoded.items():
            if call.outcomes[index] is not None:
                continue
            length = len(headers) + len(payload)
            if length > max_payload:
                error = f"headers and payload are {length:,} bytes; the server's max_payload is {max_payload:,}"
                self._set_outcome((call, index), rejected(error, error_class="nats.too_large"))
                continue
            if self._suspensions.suspended and not self._suspensions.begin_trial(subject):
                outcome = self._suspensions.outcome(subject)
                if outcome is not None:
                    self._set_outcome((call, index), outcome)
                    continue
            if len(self._in_flight) >= self._max_in_flight:
                await self._write(frames, call)
                frames, size = [], 0
                await self._wait(lambda: len(self._in_flight) < self._max_in_flight or bool(self.error))
            self._last_token += 1
            token = b"%d" % self._last_token
            self._in_flight[token] = call, index
            frames.append(encode_hpub(subject, self._inbox + token, headers, payload))
            size += length
            if size >= WRITE_SIZE:
                await self._write(frames, call)
                frames, size = [], 0
        await self._write(frames, call)

    async def _write(self, frames: list[bytes], call: NatsCall) -> None:
        if frames:
            await self._client.write(frames)
            call.progress_at = time.monotonic()

    # Responses

    def _on_message(self, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        token = subject[len(self._inbox) :]
        sent = self._in_flight.get(token)
        if sent is None:
            return
        if headers is not None and headers.startswith(NO_RESPONDERS):
            del self._in_flight[token]
            if not self._unrouted:
                self._start(self._judge_unrouted())
            self._unrouted.append(sent)
        elif (outcome := read_response(data)) is not None:
            del self._in_flight[token]
            if self._suspensions.suspended:
                self._suspensions.end(_subject(sent))
            self._set_outcome(sent, outcome)
        self._changed.set()

    def _set_outcome(self, sent: Sent, outcome: Outcome) -> None:
        call, index = sent
        call.set_outcome(index, outcome)
        call.progress_at = time.monotonic()
        if not call.missing:
            self._calls.discard(call)

    async def _judge_unrouted(self) -> None:
        # Judge all responses so far together.
        await asyncio.sleep(0)
        unrouted, self._unrouted = self._unrouted, []
        await self._judge(unrouted, stalled=False)

    async def _judge(self, messages: Sequence[Sent], *, stalled: bool) -> None:
        """Find out why these messages are not confirmed, and set their outcomes."""
        subjects = list(dict.fromkeys(_subject(sent) for sent in messages))
        outcomes = await asyncio.gather(*(self._judge_subject(subject.decode()) for subject in subjects))
        by_subject = dict(zip(subjects, outcomes, strict=True))
        for subject, outcome in by_subject.items():
            if stalled and outcome.kind is OutcomeKind.DEFERRED:
                self._suspensions.begin(subject, outcome.error, outcome.error_class, least=STALLED_WAIT)
            elif outcome.kind is OutcomeKind.REJECTED:
                self._suspensions.end(subject)
        for sent in messages:
            self._suspensions.end_trial(_subject(sent))
            self._set_outcome(sent, by_subject[_subject(sent)])

    async def _judge_subject(self, subject: str) -> Outcome:
        """Return the outcome of messages that no stream has confirmed: a wrong subject differs from an outage."""
        try:
            found = await self._client.ask("STREAM.NAMES", {"subject": subject})
        except NotPermitted as error:
            reason = f"no stream has confirmed the message; whether one has its subject cannot be found out: {error}"
            return set_aside(reason, BUSY_WAIT, error_class="nats.not_confirmed")
        except NoAnswer as error:
            return unanswered(str(error))
        if not found.get("streams"):
            reason = (
                f"no stream has the subject {subject!r}; add it to a stream's subjects, or correct the option subject"
            )
            return rejected(reason, error_class="nats.no_stream")
        reason = f"the stream {found['streams'][0]!r} confirms nothing: it has no leader, has no_ack set, or is busy"
        return set_aside(reason, BUSY_WAIT, error_class="nats.stalled")

    def _on_denied(self, subject: str) -> None:
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
            for call in [*self._calls]:
                if now - call.submitted_at > self._options.timeout - 2 * interval:
                    self._expire(call)
                elif self._is_connected and now - call.progress_at > stall_timeout:
                    stalled.add(call)
            if stalled and not self._is_examining:
                self._is_examining = True
                self._start(self._examine(stalled))

    async def _examine(self, stalled: Collection[NatsCall]) -> None:
        """Probe the server; if it responds, find out why it has not responded to the messages of these calls."""
        before = {token for token, (call, _index) in self._in_flight.items() if call in stalled}
        try:
            await asyncio.wait_for(self._client.flush(), self._options.stall_timeout)
        except Exception:
            self._end(f"{self._server} does not respond")
            return
        # The server has read all of these messages, and sent its responses first.
        left = [sent for token in before if (sent := self._in_flight.pop(token, None)) is not None]
        self._changed.set()
        await self._judge(left, stalled=True)
        self._is_examining = False

    def _expire(self, call: NatsCall) -> None:
        self._calls.discard(call)
        for token in [token for token, sent in self._in_flight.items() if sent[0] is call]:
            del self._in_flight[token]
        for subject in {encoded.subject for encoded in call.encoded.values()}:
            self._suspensions.end_trial(subject)
        self._changed.set()
        call.set_missing(unanswered(f"{self._server} did not confirm the message in time"))

    # Ending

    def _on_closed(self, error: BaseException | None) -> None:
        if error is not None and blames_message(error):
            for call in {call for call, _index in self._in_flight.values()}:
                self._calls.discard(call)
                call.refuse(f"NATS ended the connection because of a message: {explain(error)}", error)
        super()._on_closed(error)

    def _close(self) -> None:
        self._end("the publisher was closed")
        self._opening.cancel()

    def _release(self, error: str) -> None:
        super()._release(error)
        for call in self._calls:
            call.set_missing(unanswered(error))
        self._calls.clear()
        self._in_flight.clear()
        self._queue.clear()


def _subject(sent: Sent) -> bytes:
    call, index = sent
    return call.encoded[index].subject
