"""Prove that consumers can work: the database, its migrations, and a connection to each queue."""

from collections.abc import Iterator, Sequence

from django_outbox.inbox.base import Consumer, Unavailable
from django_outbox.management.proof import Finding, check_deployment


def check_inbox(using: str, consumers: Sequence[Consumer]) -> Iterator[Finding]:
    """Check everything that an inbox needs. Each consumer connects for a moment, and gives back what it receives."""
    yield from check_deployment(using, [])
    for consumer in consumers:
        subject = f"consumer {consumer.alias!r} ({consumer.source})"
        try:
            consumer.open()
        except Unavailable as error:
            yield Finding(subject, str(error))
        else:
            yield Finding(subject)
        finally:
            consumer.close()
