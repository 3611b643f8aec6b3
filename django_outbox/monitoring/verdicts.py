"""Verdicts: what the figures mean, in sentences."""

from collections.abc import Iterator

from django_outbox.monitoring.types import CODES, ConsumerStatus, Count, Level, PublisherStatus, Status, Verdict
from django_outbox.wording import counted, duration

__all__ = ["MAX_AGE", "judge"]

MAX_AGE = 60.0
"""Seconds that a due message may wait before the outbox counts as not delivering."""


def judge(status: Status, max_age: float = MAX_AGE) -> tuple[Verdict, ...]:
    """Return what is to be known, the most urgent first; at least one verdict.

    Args:
        status: the figures.
        max_age: seconds that a due message may wait, and that an outage may last, before it is critical.
    """
    verdicts = [verdict for publisher in status.publishers for verdict in _judge_publisher(publisher, status, max_age)]
    verdicts += _judge_failures(status)
    verdicts += [verdict for consumer in status.consumers for verdict in _judge_consumer(consumer, status, max_age)]
    if not any(verdict.level == Level.CRITICAL for verdict in verdicts):
        verdicts.append(_all_is_well(status))
    verdicts.sort(key=lambda verdict: (-verdict.level, CODES.index(verdict.code)))
    return tuple(verdicts)


def _judge_publisher(publisher: PublisherStatus, status: Status, max_age: float) -> Iterator[Verdict]:
    alias, oldest = publisher.alias, publisher.oldest_due or 0.0
    late = oldest > max_age
    waiting = publisher.due + publisher.delayed + publisher.retrying
    if not publisher.configured:
        if waiting:
            sentence = f"{_messages(waiting)} for {alias!r}, which is not in the settings."
            yield Verdict(Level.CRITICAL if late else Level.WARNING, "unknown_publisher", sentence, alias)
        return
    if publisher.paused:
        yield Verdict(Level.WARNING, "paused", _paused(publisher), alias)
        return
    for each in publisher.paused_types:
        sentence = f"Messages of type {each.type!r} of the publisher {alias!r} are paused{_by(each.paused_by)}."
        if each.resuming:
            sentence = (
                f"Some messages of type {each.type!r} of the publisher {alias!r} are still held. Resume it again."
            )
        yield Verdict(Level.WARNING, "paused", sentence, alias)
    if publisher.outage:
        since = publisher.outage_since or status.at
        lasted = (status.at - since).total_seconds()
        sentence = (
            f"Publisher {alias!r} has been unavailable for {duration(round(lasted))} ({publisher.outage.rstrip('.')}): "
            f"{publisher.due} due."
        )
        # A half-open breaker without late messages only waits for a message with which to try the broker.
        critical = late or (publisher.breaker == "open" and lasted > max_age)
        yield Verdict(Level.CRITICAL if critical else Level.WARNING, "unavailable", sentence, alias)
    elif late and not (publisher.processed_lately and publisher.relays):
        relays = counted(publisher.relays, "relay") if publisher.relays else "no relay seen"
        sentence = f"Not delivering for {duration(round(oldest))}: {publisher.due} due for {alias!r}, {relays}."
        yield Verdict(Level.CRITICAL, "not_delivering", sentence, alias)
    elif late:
        sentence = f"Publisher {alias!r} is {duration(round(oldest))} behind: {publisher.due} due."
        yield Verdict(Level.WARNING, "behind", sentence, alias)


def _judge_consumer(consumer: ConsumerStatus, status: Status, max_age: float) -> Iterator[Verdict]:
    alias = consumer.alias
    if not consumer.inboxes:
        silent = duration(round((status.at - consumer.seen_at).total_seconds()))
        what = f"run_inbox stopped {silent} ago" if consumer.stopped else f"its inbox was last seen {silent} ago"
        level = Level.WARNING if consumer.stopped else Level.CRITICAL
        yield Verdict(level, "not_read", f"Consumer {alias!r} is not read: {what}.", consumer=alias)
    elif consumer.outage:
        lasted = (status.at - (consumer.outage_since or status.at)).total_seconds()
        sentence = (
            f"Consumer {alias!r} has been unavailable for {duration(round(lasted))} ({consumer.outage.rstrip('.')})."
        )
        level = Level.CRITICAL if lasted > max_age else Level.WARNING
        yield Verdict(level, "not_receiving", sentence, consumer=alias)
    elif consumer.state == "paused":
        sentence = f"Consumer {alias!r} pauses because of the backlog of its publisher."
        yield Verdict(Level.WARNING, "backlog", sentence, consumer=alias)


def _judge_failures(status: Status) -> Iterator[Verdict]:
    if status.blocked_keys:
        keys = len(status.blocked_keys)
        first = status.blocked_keys[0]
        sentence = f"{counted(keys, 'key')} {'stands' if keys == 1 else 'stand'} still, for example {first.key!r}."
        yield Verdict(Level.WARNING, "blocked", sentence, first.publisher)
    failed = sum((publisher.failed for publisher in status.publishers), Count())
    if failed:
        plural = "" if failed.number == 1 and not failed.more else "s"
        yield Verdict(Level.WARNING, "failed", f"{failed} message{plural} failed.")


def _all_is_well(status: Status) -> Verdict:
    due = sum((publisher.due for publisher in status.publishers if not publisher.paused), Count())
    rate = sum(publisher.processed_per_minute for publisher in status.publishers)
    if rate:
        return Verdict(Level.OK, "delivering", f"Delivering: {counted(rate, 'message')} in the last minute, {due} due.")
    if any(publisher.processed_lately for publisher in status.publishers):
        return Verdict(Level.OK, "delivering", f"Delivering: {due} due.")
    if due:
        return Verdict(Level.OK, "delivering", f"{_messages(due)} due, none of them late.")
    if any(relay.alive for relay in status.relays):
        return Verdict(Level.OK, "idle", "Nothing is due.")
    return Verdict(Level.OK, "idle", "Nothing is due. No relay has been seen lately.")


def _messages(count: Count) -> str:
    return "1 message is" if str(count) == "1" else f"{count} messages are"


def _paused(publisher: PublisherStatus) -> str:
    assert publisher.paused is not None
    reason = f" ({publisher.paused.reason})" if publisher.paused.reason else ""
    return f"Publisher {publisher.alias!r} is paused{_by(publisher.paused.paused_by)}{reason}: {publisher.due} due."


def _by(name: str) -> str:
    return f" by {name}" if name else ""
