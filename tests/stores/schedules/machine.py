"""The schedules: steps of writers, relays and operators, drawn and shrunk by hypothesis and run in one thread."""

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from django.db import DatabaseError, Error, connections, transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from django_outbox import OutboxMessage, enqueue
from django_outbox.conf import get_settings
from django_outbox.db.functions import DatabaseNow
from django_outbox.relay.sources import TableSource
from django_outbox.retention import discard
from django_outbox.retention.purge import purge
from django_outbox.stores.claiming import FEW_IN_ALL
from django_outbox.stores.locks import key_lock_numbers
from tests.stores.schedules.actors import LATER, Death, Operator, Relay, Writer, new_cursor, settlement
from tests.stores.schedules.model import PENDING, Entry, Hand, Model, Outcome, State, Violation
from tests.stores.schedules.stage import Stage
from tests.stores.schedules.steps import (
    BreakOff,
    End,
    Enqueue,
    Freeze,
    Hold,
    Interfere,
    Operate,
    Proceed,
    Release,
    Step,
    Write,
    keys,
    steps,
)
from tests.support.messages import claim, store_of

LEASE = 3600.0
"""The claim timeout in seconds: long on the servers, and on SQLite until a schedule lets the lease expire."""

EMPTY_CLAIMS = 2
MAX_EMPTY_CLAIMS = 20
"""Number of empty claims after which a drain has read everything if its cursor says so, and in any case."""


class Schedules(RuleBasedStateMachine):
    """Writers, relays and operators on one stage.

    A step that no actor can take now is not taken, nor one that would have to wait for another actor, because in a
    single thread it would wait forever. A step that waits nevertheless is a violation, unless it is an operator's.
    """

    stage: ClassVar[Stage]
    kind: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.log: list[str] = []
        self.broken = False
        self.stage.reset()
        *writers, others = self.stage.writers
        self.writers = [Writer(f"writer {n}", alias) for n, alias in enumerate(writers, 1)]
        self.others = Writer("other writers", others)
        settings = replace(get_settings(), claim_timeout=LEASE)
        self.relays = [
            Relay(f"relay {n}", alias, new_cursor(self.kind), TableSource(alias, "default", settings))
            for n, alias in enumerate(self.stage.relays, 1)
        ]
        self.holder = Operator(self.stage.operator)

    @initialize(opened=st.lists(keys, max_size=2), written=st.lists(keys, max_size=4))
    def begin(self, opened: list[str], written: list[str]) -> None:
        """Begin during traffic: with open transactions, and messages that were written later but committed earlier."""
        for writer, key in enumerate(opened[: 0 if self.stage.one_writer else None]):
            self.enqueue(Enqueue(writer, key, False, False))
        for key in written:
            self.write(Write(key, 1))

    @rule(step=steps)
    def take(self, step: Step) -> None:
        if self.free or isinstance(step, Enqueue | End):
            take: dict[type[Step], Callable[[Any], None]] = {
                Write: self.write,
                Enqueue: self.enqueue,
                End: self.end,
                Proceed: self.proceed,
                BreakOff: self.break_off,
                Operate: self.operate,
                Interfere: self.interfere,
                Hold: self.hold,
                Release: self.release,
                Freeze: self.freeze,
            }
            take[type(step)](step)

    # Writers

    def write(self, step: Write) -> None:
        writer = self.others
        with self.step(f"{writer.name} write and commit") as say:
            with transaction.atomic(using=writer.alias):
                messages = [enqueue("test.written", 1, key=step.key, using=writer.alias) for _ in range(step.messages)]
            entries = [self.model.written(message.pk, step.key, locked=False, delayed=False) for message in messages]
            self.model.committed(entries)
            say(", ".join(map(str, entries)))

    def enqueue(self, step: Enqueue) -> None:
        writer = self.writers[step.writer]
        slots = set(key_lock_numbers({step.key})) if step.locked else set()
        others = [other for other in self.writers if other is not writer and other.block is not None]
        if (self.stage.one_writer and others) or any(slots & other.slots for other in others):
            return
        begins = "enqueues" if writer.block else "begins and enqueues"
        with self.step(f"{writer.name} {begins}{' with the lock of the key' if slots else ''}") as say:
            if writer.block is None:
                writer.block = transaction.atomic(using=writer.alias)
                writer.block.__enter__()
            writer.slots |= slots
            delay = LATER if step.delayed else None
            message = enqueue("test.written", 1, key=step.key, using=writer.alias, lock_key=step.locked, delay=delay)
            entry = self.model.written(message.pk, step.key, locked=step.locked, delayed=step.delayed)
            writer.entries.append(entry)
            say(f"{entry}{', due later' if step.delayed else ''}")

    def end(self, step: End) -> None:
        writer = self.writers[step.writer]
        if writer.block is None:
            return
        with self.step(f"{writer.name} {'commits' if step.commits else 'rolls back'}") as say:
            say(", ".join(map(str, writer.entries)))
            self.leave_block(writer, commits=step.commits)
            (self.model.committed if step.commits else self.model.rolled_back)(writer.entries)
            writer.entries = []

    # Relays

    def proceed(self, step: Proceed) -> None:
        relay = self.relays[step.relay]
        if relay.hand is None:
            if self.model.in_state(State.DUE):
                self.claim(relay, step.limit)
        elif not relay.hand.outcomes and relay.source.is_late:
            self.give_back(relay)
        elif not relay.hand.outcomes:
            self.publish(relay, step.outcomes)
        elif relay.hand.cut:
            self.give_back(relay)
        else:
            self.settle(relay, step.delete)

    def break_off(self, step: BreakOff) -> None:
        relay = self.relays[step.relay]
        if relay.hand is not None:
            self.die(relay) if step.dies and not relay.hand.cut else self.give_back(relay)

    def claim(self, relay: Relay, limit: int) -> int:
        if self.kind == "few":
            limit, relay.cursor = FEW_IN_ALL, new_cursor(self.kind)
        with self.step(f"{relay.name} claims up to {limit}:") as say:
            relay.source.claim(limit)  # It notes the time; the store's own claim takes the bounds.
            relay.context = claim(relay.alias, cursor=relay.cursor, limit=limit, max_seconds=LEASE)
            relay.claim = relay.context.__enter__()
            messages: list[Any] = [*relay.claim.messages]
            names = {entry.id: str(entry) for entry in self.model.entries}
            say(", ".join(names.get(message.id, f"id {message.id}") for message in messages) or "nothing")
            relay.hand = self.model.claimed(relay.name, messages, limit)
            if not messages:
                self.leave_claim(relay)
            return len(messages)

    def publish(self, relay: Relay, outcomes: list[Outcome]) -> None:
        assert relay.hand is not None
        with self.step(f"{relay.name} publishes:") as say:
            self.model.published(relay.hand, outcomes)
            say(", ".join(f"{entry} {outcome.value}" for entry, outcome in relay.hand.outcomes.items()))

    def settle(self, relay: Relay, delete: bool) -> None:
        hand, claim = relay.hand, relay.claim
        assert hand is not None
        assert claim is not None
        with self.step(f"{relay.name} settles{' and deletes what was accepted' if delete else ''}") as say:
            errors = self.stage.errors.count
            store_of(relay.alias).settle(claim, settlement(hand), delete_processed=delete)
            self.leave_claim(relay)
            written = set(hand.entries) - hand.lost - hand.doubtful | self.written_all_the_same(hand)
            self.model.settled(hand, written, deleted=delete)
            self.model.released(hand, failed=hand.expired or bool(hand.lost or hand.doubtful))
            lost = [entry for entry in hand.lost if hand.outcomes[entry] not in {Outcome.UNANSWERED, Outcome.HELD}]
            if lost:
                say(f"(it has lost {', '.join(map(str, lost))})")
                if self.stage.errors.count == errors:
                    raise Violation(f"one fate: {relay.name} has lost {lost[0]}, and logged no error")
            elif self.stage.errors.count > errors and not hand.doubtful:
                raise Violation(f"one fate: {relay.name} logged an error, though it has lost nothing")

    def written_all_the_same(self, hand: Hand) -> set[Entry]:
        """Return the messages that were settled although the claim may have lost them."""
        found = self.stage.rows() if hand.doubtful else {}
        return {entry for entry in hand.doubtful if found.get(entry.id) != entry.row}

    def give_back(self, relay: Relay) -> None:
        assert relay.hand is not None
        with self.step(f"{relay.name} gives back what it has"):
            self.model.released(relay.hand, failed=True)
            if relay.hand.cut:
                with suppress(Error):
                    self.leave_claim(relay, Death())
                with suppress(Error):
                    connections[relay.alias].close()
            else:
                self.leave_claim(relay, Death())

    def die(self, relay: Relay) -> None:
        assert relay.hand is not None
        with self.step(f"{relay.name} dies"):
            self.stage.cut(relay.alias)
            hand = relay.hand
            # What is left in this process finds that its session is gone.
            with suppress(Error):
                self.leave_claim(relay, Death())
            with suppress(Error):
                connections[relay.alias].close()
            hand.failed = True
            if self.stage.vendor != "sqlite":
                self.model.released(hand, failed=True)
            relay.cursor = new_cursor(self.kind)

    # Operators

    def operate(self, step: Operate) -> None:
        """Take one of the steps that an operator or the time can take now."""
        moves: list[Callable[[], None]] = []
        for entry in self.model.in_state(State.FAILED):
            moves += [partial(self.requeue, entry), partial(self.discard, entry)]
        waiting = [entry for entry in self.model.in_state(State.WAITING) if not entry.foreign]
        moves += [partial(self.let_it_be_due, entry) for entry in waiting]
        processed = self.model.in_state(State.PROCESSED)
        moves += [partial(self.deliver_again, entry) for entry in processed]
        moves += [self.purge] if processed else []
        if moves:
            moves[step.pick % len(moves)]()

    def requeue(self, entry: Entry) -> None:
        with self.operator(f"an operator requeues {entry}"):
            if self.message(entry).requeue() != 1:
                raise Violation(f"one fate: {entry} could not be requeued")
            self.model.requeued(entry)

    def deliver_again(self, entry: Entry) -> None:
        with self.operator(f"an operator has {entry} delivered again"):
            if self.message(entry).deliver_again() != 1:
                raise Violation(f"one fate: {entry} could not be delivered again")
            self.model.requeued(entry)

    def discard(self, entry: Entry) -> None:
        with self.operator(f"an operator discards {entry}"):
            if discard(self.message(entry)) != 1:
                raise Violation(f"one fate: {entry} could not be discarded")
            entry.state = State.GONE
            self.model.changed(entry)

    def let_it_be_due(self, entry: Entry) -> None:
        with self.operator(f"the time of {entry} comes"):
            self.message(entry).update(available_at=DatabaseNow())
            entry.state = State.DUE

    def interfere(self, step: Interfere) -> None:
        hand = self.relays[step.relay].hand
        entries = [entry for entry in hand.entries if entry.state in PENDING] if hand else []
        if not entries:
            return
        entry = entries[step.pick % len(entries)]
        with self.operator(f"another program {'deletes' if step.delete else 'fails'} {entry}"):
            if step.delete:
                self.message(entry).delete()
                entry.state = State.GONE
            else:
                self.message(entry).update(available_at=None, failed_at=DatabaseNow(), blocks_key=False)
                entry.state, entry.blocks = State.FAILED, False
            self.model.changed(entry)

    def hold(self, step: Hold) -> None:
        """Hold a message that no relay has, and keep its lock."""
        if self.stage.one_writer:
            return
        taken = {entry for relay in self.relays if relay.hand for entry in relay.hand.entries}
        entries = [entry for entry in self.model.in_state(*PENDING) if not entry.foreign and entry not in taken]
        if not entries:
            return
        entry, holder = entries[step.pick % len(entries)], self.holder
        with self.operator(f"the operator holds {entry} in an open transaction"):
            if holder.block is None:
                holder.block = transaction.atomic(using=holder.alias)
                holder.block.__enter__()
            with transaction.atomic(using=holder.alias):
                OutboxMessage.objects.using(holder.alias).filter(pk=entry.id).hold()
            entry.foreign = True
            holder.entries.append(entry)

    def release(self, step: Release) -> None:
        holder = self.holder
        if holder.block is None:
            return
        with self.step(f"the operator {'commits' if step.commits else 'rolls back'}"):
            block, holder.block = holder.block, None
            transaction.set_rollback(not step.commits, using=holder.alias)
            block.__exit__(None, None, None)
            for entry in holder.entries:
                entry.foreign = False
                if step.commits:
                    entry.state = State.WAITING
            holder.entries = []

    def freeze(self, step: Freeze) -> None:
        if self.model.hands:
            self.let_claims_run_out()

    def purge(self) -> None:
        with self.operator("what is processed is purged"):
            purge(using=self.stage.observer, older_than=datetime.timedelta(0))
            for entry in self.model.in_state(State.PROCESSED):
                entry.state = State.GONE

    def let_claims_run_out(self) -> None:
        with self.step("every claim expires"):
            self.stage.tick(LEASE + 1)
            if not self.stage.one_writer:
                for relay in self.relays:
                    if relay.hand is not None and not relay.hand.cut:
                        self.stage.cut(relay.alias)
                        relay.hand.cut = True
                        self.model.released(relay.hand, failed=True)
                return
            self.model.ran_out()
            alive = [relay.hand for relay in self.relays]
            self.model.hands = [hand for hand in self.model.hands if hand in alive]

    # The end

    def teardown(self) -> None:
        """Let every actor finish, then deliver: first what is not blocked, and after a requeue everything."""
        try:
            if not self.broken:
                self.wind_up()
        finally:
            self.clean_up()

    def wind_up(self) -> None:
        for number in range(len(self.writers)):
            self.end(End(number, False))
        self.release(Release(False))
        for relay in self.relays:
            if relay.hand is not None:
                self.give_back(relay)
        if self.model.hands:
            self.let_claims_run_out()
        self.drain()
        with self.step("waiting messages become due, and failed ones are requeued"):
            OutboxMessage.objects.using(self.stage.observer).pending().update(available_at=DatabaseNow())
            for entry in self.model.in_state(State.WAITING):
                entry.state = State.DUE
            OutboxMessage.objects.using(self.stage.observer).requeue()
            for entry in self.model.in_state(State.FAILED):
                self.model.requeued(entry)
        self.drain()

    def drain(self) -> None:
        """Deliver every message that may be delivered."""
        relay, empty = self.relays[0], 0
        while empty < EMPTY_CLAIMS or not (relay.cursor.exhausted or empty == MAX_EMPTY_CLAIMS):
            if self.claim(relay, 1000):
                self.publish(relay, [Outcome.ACCEPTED])
                self.settle(relay, delete=False)
                empty = 0
            else:
                empty += 1
                relay.cursor.sweep_next()
        with self.step("nothing is left to claim"):
            stranded = ", ".join(map(str, self.model.stranded()))
            if stranded:
                raise Violation(f"nothing blocked: {stranded} may be delivered, but no claim takes them")

    # How the steps are taken

    def leave_claim(self, relay: Relay, error: BaseException | None = None) -> None:
        context, relay.context, relay.claim, relay.hand = relay.context, None, None, None
        assert context is not None
        with suppress(Death):
            context.__exit__(type(error) if error else None, error, None)

    def leave_block(self, writer: Writer, *, commits: bool) -> None:
        block, writer.block, writer.slots = writer.block, None, set()
        assert block is not None
        transaction.set_rollback(not commits, using=writer.alias)
        block.__exit__(None, None, None)

    def message(self, entry: Entry) -> Any:
        return OutboxMessage.objects.using(self.stage.observer).filter(pk=entry.id)

    def clean_up(self) -> None:
        """Leave every transaction of a schedule that ended early."""
        for writer in self.writers:
            if writer.block is not None:
                with suppress(Error):
                    self.leave_block(writer, commits=False)
        if self.holder.block is not None:
            with suppress(Error):
                connections[self.holder.alias].close()
                self.holder.block.__exit__(Death, Death(), None)
        for relay in self.relays:
            if relay.context is not None:
                with suppress(Error):
                    self.leave_claim(relay, Death())
                connections[relay.alias].close()

    @contextmanager
    def step(self, line: str) -> Iterator[Any]:
        """Log a step; a database error in it is a violation."""
        self.log.append(line)

        def say(text: str) -> None:
            self.log[-1] += f" {text}"

        with self.watched():
            try:
                yield say
            except DatabaseError as error:
                raise Violation(f"the database: {type(error).__name__}: {str(error).strip()}") from error
            self.check()

    @contextmanager
    def operator(self, line: str) -> Iterator[None]:
        """Log an operator's step; it is not taken if it would have to wait for a relay."""
        self.log.append(line)
        with self.watched():
            try:
                yield
            except DatabaseError:
                self.log[-1] += " (it would have to wait)"
            self.check()

    def check(self) -> None:
        """Compare the table with the model, after each step."""
        self.stage.tick()
        self.model.compare(self.stage.rows())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Add the schedule to a violation."""
        try:
            yield
        except Violation as violation:
            self.broken = True
            schedule = "\n".join(f"{number:>4}  {line}" for number, line in enumerate(self.log, 1))
            raise Violation(f"{violation}\n{schedule}") from violation.__cause__

    @property
    def free(self) -> bool:
        """Whether actors other than a writer with an open transaction can write."""
        return not self.stage.one_writer or all(writer.block is None for writer in self.writers)
