"""Check a deployment with an inbox: the database, its migrations, and a connection to each queue."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from django.db import DatabaseError, InterfaceError, connections

from django_outbox.brokers.consumer import Consumer, Unavailable
from django_outbox.inbox.models import HandledMessage
from django_outbox.management.proof import CheckResult, check_deployment
from django_outbox.stores.schema import missing_schema


def check_inbox(using: str, consumers: Sequence[Consumer]) -> Iterator[CheckResult]:
    """Check everything that an inbox needs. Each consumer connects, and receives nothing."""
    yield from check_deployment(using, [])
    with suppress(DatabaseError, InterfaceError):
        # If the database is unavailable, there is a result for it already.
        if missing := missing_schema(connections[using], [HandledMessage]):
            problem = f'the database lacks {missing}. Run "manage.py migrate --database={using}".'
            yield CheckResult("migrations of the inbox", problem)
    for consumer in consumers:
        subject = f"consumer {consumer.alias!r} ({consumer.source})"
        try:
            consumer.open()
        except Unavailable as error:
            yield CheckResult(subject, str(error))
        else:
            yield CheckResult(subject)
        finally:
            consumer.close()
