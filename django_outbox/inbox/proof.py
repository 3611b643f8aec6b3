"""Prove that consumers can work: the database, its migrations, and a connection to each queue."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from django.db import DatabaseError, InterfaceError, connections

from django_outbox.brokers.consumer import Consumer, Unavailable
from django_outbox.inbox.models import HandledMessage
from django_outbox.management.proof import Finding, check_deployment
from django_outbox.stores.schema import missing_schema


def check_inbox(using: str, consumers: Sequence[Consumer]) -> Iterator[Finding]:
    """Check everything that an inbox needs. Each consumer connects, and receives nothing."""
    yield from check_deployment(using, [])
    with suppress(DatabaseError, InterfaceError):
        # Of a database that is unavailable there is a finding.
        if missing := missing_schema(connections[using], [HandledMessage]):
            problem = f'the database lacks {missing}. Run "manage.py migrate --database={using}".'
            yield Finding("migrations of the inbox", problem)
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
