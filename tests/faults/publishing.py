"""The relays' publishers, which note each call that begins when the claim of its messages has been lost.

A relay stops itself right after a phase, such as a claim, if a fault has written the phase to the file that FAULTS_STOP
names.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings

from django_outbox.brokers import Publisher
from django_outbox.brokers.kafka import KafkaPublisher
from django_outbox.brokers.nats import JetStreamPublisher
from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from django_outbox.brokers.redis import RedisStreamsPublisher
from django_outbox.messages import Message, Outcome
from django_outbox.signals import phase_finished
from django_outbox.stores.mysql import MySQLStore
from django_outbox.stores.postgresql import PostgreSQLStore
from tests.faults.refusals import hexadecimal

CLAIM_TIMEOUT: Any = settings.OUTBOX["CLAIM_TIMEOUT"]


class Worker(threading.local):
    """The work of the current thread, by the monotonic clock, which goes on while a process is stopped.

    Attributes:
        began: when its last transaction began. The phase of a claim may begin with others, which change the number of
            a stream's positions, or find nothing.
        claimed: when the transaction of the claim in hand began.
    """

    began = -math.inf
    claimed = math.inf


worker = Worker()


def noting(begin: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of a store that begins a transaction, which then notes when."""

    def noted(*arguments: Any, **options: Any) -> Any:
        worker.began = time.monotonic()
        return begin(*arguments, **options)

    return noted


for store in (MySQLStore, PostgreSQLStore):
    store.begin = noting(store.begin)  # type: ignore[method-assign]


def note_phase(*, phase: str, seconds: float, **_: Any) -> None:
    """Note the beginning of a claim, when it has succeeded, and stop after the phase for which a fault asks."""
    if phase == "claim":
        worker.claimed = max(worker.began, time.monotonic() - seconds)
    request = Path(os.environ["FAULTS_STOP"])
    with suppress(FileNotFoundError):
        if request.read_text() == phase:
            request.unlink()
            # A signal to the process may reach another thread, and this one would go on for a moment.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


phase_finished.connect(note_phase)


class Watched(Publisher):
    """A publisher with a journal of late calls, one line a message: `<message id> <seconds since the claim began>`."""

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        since = time.monotonic() - worker.claimed
        if since > CLAIM_TIMEOUT:
            with Path(os.environ["FAULTS_LATE"]).open("a") as journal:
                journal.writelines(f"{hexadecimal(message.message_id)} {since:.3f}\n" for message in messages)
        return super().publish(messages)  # type: ignore[safe-super]


class WatchedRabbitMQPublisher(Watched, RabbitMQPublisher):
    """RabbitMQ's."""


class WatchedRedisStreamsPublisher(Watched, RedisStreamsPublisher):
    """Redis's."""


class WatchedJetStreamPublisher(Watched, JetStreamPublisher):
    """NATS's."""


class WatchedKafkaPublisher(Watched, KafkaPublisher):
    """Kafka's."""
