"""The model: the rows that the table must have, and the batch of each relay, after every step of a schedule.

It knows nothing of the store's locks. It is told what each step did, refuses a step that breaks a promise, and says
what the table must hold.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from django_outbox.messages import Message


class Violation(AssertionError):
    """A step broke a promise."""


class State(enum.Enum):
    """The state of a message in the model."""

    WRITTEN = "written, not committed"
    DUE = "pending and due"
    WAITING = "pending, not due"
    PROCESSED = "processed"
    FAILED = "failed"
    GONE = "not in the table"


PENDING = {State.DUE, State.WAITING}
COMMITTED = {*PENDING, State.PROCESSED, State.FAILED}


class Row(NamedTuple):
    """A row as an observer sees it."""

    state: str
    attempts: int
    blocks_key: bool


@dataclass(eq=False)
class Entry:
    """A message of the schedule.

    Attributes:
        number: its place in the schedule; it is shown as `m1`, `m2` and so on.
        locked: whether its writer locked the key until the commit.
        blocks: whether it failed and blocks its key.
        foreign: whether an operator has locked it.
        sender: the last claim whose publisher accepted it since it was written, requeued or delivered again.
    """

    number: int
    id: int
    key: str
    locked: bool
    delayed: bool
    state: State = State.WRITTEN
    attempts: int = 0
    blocks: bool = False
    foreign: bool = False
    sender: "Hand | None" = None

    def __str__(self) -> str:
        return f"m{self.number}{self.key}"

    @property
    def in_the_way(self) -> bool:
        """Whether later messages of the key wait for this one."""
        return self.state in PENDING or (self.state is State.FAILED and self.blocks)

    @property
    def row(self) -> Row:
        """The row that the table must have."""
        if self.state in PENDING:
            return Row("pending", self.attempts, bool(self.key))
        return Row(self.state.value, self.attempts, self.blocks)


@dataclass(eq=False)
class Hand:
    """A claimed batch.

    Attributes:
        outcomes: the outcome of each message, once it is published.
        failed: whether its relay died, gave the batch back, or held it for too long: only then may another relay send
            the same messages again.
        expired: whether the claim has run out, so that it owns nothing.
        cut: whether the database has ended its session then.
        lost: the messages that have changed since the claim, and that settling must leave alone.
        doubtful: the messages of an expired claim that no other relay has claimed since: settling may write them.
    """

    relay: str
    entries: list[Entry]
    outcomes: "dict[Entry, Outcome]" = field(default_factory=dict)
    failed: bool = False
    expired: bool = False
    cut: bool = False
    lost: set[Entry] = field(default_factory=set)
    doubtful: set[Entry] = field(default_factory=set)


class Outcome(enum.Enum):
    """The outcome of one message of a batch; a schedule never draws HELD."""

    ACCEPTED = "accepted"
    REJECTED = "fails"
    BLOCKING = "fails and blocks"
    RETRIED = "retried at once"
    DEFERRED = "retried later"
    UNANSWERED = "unanswered"
    HELD = "held back"

    @property
    def passes(self) -> bool:
        """Whether later messages of the key are published in the same batch."""
        return self in {Outcome.ACCEPTED, Outcome.REJECTED}


class Model:
    """All messages and hands of one schedule."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.hands: list[Hand] = []

    def written(self, id: int, key: str, *, locked: bool, delayed: bool) -> Entry:
        """Add a message that is not committed yet."""
        entry = Entry(len(self.entries) + 1, id, key, locked and bool(key), delayed)
        self.entries.append(entry)
        return entry

    def committed(self, entries: Iterable[Entry]) -> None:
        """Make written messages visible.

        Raises:
            Violation: a message of a locked key becomes visible after a later one of the key.
        """
        for entry in entries:
            entry.state = State.WAITING if entry.delayed else State.DUE
            for later in self.of_key(entry.key):
                if entry.locked and later.locked and later.id > entry.id and later.state is not State.WRITTEN:
                    raise Violation(f"order: {entry} was committed after {later}, although both locked their key")

    def rolled_back(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            # SQLite gives the id to the next message.
            entry.state, entry.id = State.GONE, -entry.number

    def of_key(self, key: str) -> list[Entry]:
        """Return the messages of a key by id; none for a blank key."""
        return sorted((entry for entry in self.entries if key and entry.key == key), key=lambda entry: entry.id)

    def in_state(self, *states: State) -> list[Entry]:
        return [entry for entry in self.entries if entry.state in states]

    def blocker(self, entry: Entry) -> Entry | None:
        """Return the earlier message that the message waits for, if there is one."""
        for earlier in self.of_key(entry.key):
            if earlier.id < entry.id and (
                earlier.state in PENDING or (earlier.state is State.FAILED and earlier.blocks)
            ):
                return earlier
        return None

    def claimed(self, relay: str, messages: Sequence[Message], limit: int) -> Hand:
        """Give a batch to a relay.

        Raises:
            Violation: it may not claim one of the messages, or not in this order.
        """
        if len(messages) > limit:
            raise Violation(f"bounds: {relay} claimed {len(messages)} messages, not {limit}")
        by_id = {entry.id: entry for entry in self.entries}
        hand = Hand(relay, [])
        for message in messages:
            entry = by_id[message.id]
            self._check_claimed(hand, entry, message)
            hand.entries.append(entry)
        for other in self.hands:
            self._check_owner(hand, other)
        if hand.entries:
            self.hands.append(hand)
        return hand

    def _check_claimed(self, hand: Hand, entry: Entry, message: Message) -> None:
        if entry.state is not State.DUE:
            raise Violation(f"one fate: {hand.relay} claimed {entry}, which is {entry.state.value}")
        if entry.foreign:
            raise Violation(f"one owner: {hand.relay} claimed {entry}, which an operator has locked")
        if entry in hand.entries:
            raise Violation(f"one owner: {hand.relay} claimed {entry} twice in one batch")
        if (message.key, message.attempts) != (entry.key, entry.attempts):
            raise Violation(f"one fate: {entry} was claimed as {message}, after {entry.attempts} attempts")
        for earlier in self.of_key(entry.key):
            if earlier.id < entry.id and earlier.in_the_way and earlier not in hand.entries:
                raise Violation(f"order: {hand.relay} claimed {entry} before {earlier}, which is {earlier.state.value}")

    def _check_owner(self, hand: Hand, other: Hand) -> None:
        taken = set(hand.entries)
        other.lost |= other.doubtful & taken
        other.doubtful -= taken
        if other.expired:
            return
        for entry in hand.entries:
            for held in other.entries:
                if held is entry:
                    raise Violation(f"one owner: {hand.relay} and {other.relay} both hold {entry}")
                if held.key and held.key == entry.key:
                    raise Violation(f"one owner: {hand.relay} holds {entry} while {other.relay} holds {held}")

    def published(self, hand: Hand, drawn: Sequence[Outcome]) -> None:
        """Give each message of a batch an outcome, repeating the drawn ones, and hold blocked messages back.

        Raises:
            Violation: a message was sent before, and its sender did not fail.
        """
        held: set[str] = set()
        for place, entry in enumerate(hand.entries):
            outcome = drawn[place % len(drawn)] if entry.key not in held else Outcome.HELD
            if outcome is Outcome.BLOCKING and not entry.key:
                outcome = Outcome.REJECTED
            if entry.key and not outcome.passes:
                held.add(entry.key)
            hand.outcomes[entry] = outcome
            if outcome is Outcome.ACCEPTED:
                if entry.sender is not None and not entry.sender.failed:
                    raise Violation(f"sent twice: {hand.relay} sent {entry}, which {entry.sender.relay} had sent")
                entry.sender = hand

    def settled(self, hand: Hand, entries: Iterable[Entry], *, deleted: bool) -> None:
        """Write the outcomes of these messages of a batch."""
        for entry in entries:
            settle(entry, hand.outcomes[entry], deleted=deleted)

    def released(self, hand: Hand, *, failed: bool) -> None:
        """Take a batch from its relay."""
        hand.failed = hand.failed or failed
        if hand in self.hands:
            self.hands.remove(hand)

    def ran_out(self) -> None:
        """Let every open claim expire."""
        for hand in self.hands:
            hand.doubtful = set(hand.entries) - hand.lost if not hand.expired else hand.doubtful
            hand.expired = hand.failed = True

    def changed(self, entry: Entry) -> None:
        """Record that another program has changed a message, so that settling must leave it unchanged."""
        for hand in self.hands:
            if entry in hand.entries:
                hand.lost.add(entry)
                hand.doubtful.discard(entry)

    def requeued(self, entry: Entry) -> None:
        """Make a failed or processed message due. A claim that had it before may still settle it."""
        for hand in self.hands:
            if entry in hand.lost:
                hand.lost.discard(entry)
                hand.doubtful.add(entry)
        entry.state, entry.attempts, entry.blocks, entry.sender = State.DUE, 0, False, None

    def compare(self, found: dict[int, Row]) -> None:
        """Compare the table with the model.

        Raises:
            Violation: they differ.
        """
        for entry in self.entries:
            row, expected = found.pop(entry.id, None), entry.row if entry.state in COMMITTED else None
            if row != expected:
                raise Violation(f"one fate: {entry} is {row or 'not in the table'}, expected {expected or 'no row'}")
        if found:
            raise Violation(f"one fate: rows that no writer wrote: {found}")

    def stranded(self) -> Iterator[Entry]:
        """Yield the messages that are due and not blocked; after a drain there must be none."""
        for entry in self.in_state(State.DUE):
            if self.blocker(entry) is None:
                yield entry


def settle(entry: Entry, outcome: Outcome, *, deleted: bool) -> None:
    """Put a message into the state that follows from its outcome."""
    if outcome in {Outcome.UNANSWERED, Outcome.HELD}:
        return
    entry.attempts += 1
    if outcome is Outcome.ACCEPTED:
        entry.state = State.GONE if deleted else State.PROCESSED
    elif outcome in {Outcome.REJECTED, Outcome.BLOCKING}:
        entry.state, entry.blocks = State.FAILED, outcome is Outcome.BLOCKING
    else:
        entry.state = State.WAITING if outcome is Outcome.DEFERRED else State.DUE
