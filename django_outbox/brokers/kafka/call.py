"""The messages of one call of `publish`: send them, wait for their reports, and turn these into outcomes."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as Delivered

from django_outbox.brokers.call import EncodedCall
from django_outbox.brokers.kafka.connection import ConnectionState
from django_outbox.brokers.kafka.encoding import Record
from django_outbox.brokers.kafka.errors import Blame, meaning_of
from django_outbox.brokers.kafka.publisher_connection import KafkaPublisherConnection, ProducerPool
from django_outbox.brokers.options import STALL_SHARE
from django_outbox.brokers.publisher import BatchRefused
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, set_aside, unanswered
from django_outbox.utils.text import describe

NO_RESPONSE = "Kafka did not respond in time"
STALLED = "Kafka responds, but did not confirm the message: its partition has no leader, or too few in-sync replicas"
STALLED_CLASS = "kafka.stalled"


class KafkaCall(EncodedCall[Message, Record]):
    def __init__(
        self, messages: Sequence[Message], encode: Callable[[Message], Record], pool: ProducerPool, timeout: float
    ) -> None:
        super().__init__(messages, encode, carrier="Kafka", error_class="kafka")
        self._pool = pool
        self._timeout = timeout
        self._stall_timeout = timeout / STALL_SHARE
        self._deadline = time.monotonic() + timeout
        self._errors: list[tuple[int, KafkaError, int]] = []
        self._missing = 0
        self._outage = ""
        self._is_stalled = False
        self._refusal: BatchRefused | None = None

    def run(self) -> list[Outcome]:
        """Send all messages and return their outcomes.

        Raises:
            BatchRefused: Kafka refused several messages together because of one of them.
        """
        waiting = self.without_outcome()
        while waiting and not self._has_ended():
            count = len(waiting)
            with self._pool.borrow() as producer:
                self._send(producer, waiting)
                self._read_errors(producer.state)
                reason = producer.state.reason
            # Messages that failed because of others are sent again. Each round must settle one, or it would never end.
            waiting = self.without_outcome(waiting)
            if len(waiting) == count and not self._has_ended():
                self._outage = reason or NO_RESPONSE
        if self._refusal and not self._outage:
            self._refusal.outcomes = self.outcomes
            raise self._refusal
        if self._is_stalled and not self._outage:
            return self.complete(set_aside(STALLED, self._timeout, error_class=STALLED_CLASS))
        return self.complete(unanswered(self._outage))

    def _has_ended(self) -> bool:
        return bool(self._outage or self._is_stalled or self._refusal)

    def _send(self, producer: KafkaPublisherConnection, indexes: Sequence[int]) -> None:
        records, report = self.encoded, self._report
        self._missing = 0
        producer.connect(self._deadline)
        if not producer.state.is_connected:
            self._outage = producer.state.reason or NO_RESPONSE
            producer.discard()
            return
        produce, sent = producer.produce, 0
        for index in indexes:
            topic, value, key, headers = records[index]
            try:
                produce(topic, value, key, on_delivery=partial(report, index), headers=headers)
            except KafkaException as error:
                if producer.has_ended(error.args[0]):
                    break
                self._errors.append((index, error.args[0], index))
            except BufferError:
                # The queue is full. The next round sends the others.
                break
            except Exception as error:
                text = f"Kafka cannot carry the message: {describe(error)}"
                self.outcomes[index] = rejected(text, error_class="kafka.unencodable")
            else:
                sent += 1
        self._missing += sent
        self._await_reports(producer)

    def _await_reports(self, producer: KafkaPublisherConnection) -> None:
        """Wait until the timeout; for a sixth of it if other messages were confirmed, but these are not.

        If the brokers still respond, this is not an outage: messages for other partitions can be delivered.
        """
        sent = missing = self._missing
        changed = time.monotonic()
        while self._missing:
            producer.flush(self._deadline - time.monotonic())
            now = time.monotonic()
            if self._missing < missing:
                missing, changed = self._missing, now
            elif now >= self._deadline:
                if producer.responds(self._stall_timeout):
                    self._is_stalled = True
                else:
                    self._outage = producer.state.reason or NO_RESPONSE
                break
            elif missing < sent and now - changed > self._stall_timeout and producer.state.is_connected:
                self._is_stalled = True
                break
        if self._missing or producer.state.is_broken:
            producer.discard()

    def _report(self, index: int, error: KafkaError | None, delivered: Delivered) -> None:
        self._missing -= 1
        if error is None:
            # Without an offset librdkafka only concludes that it was written, because the broker has confirmed a later
            # sequence number. A broker that knows nothing of a producer accepts any number, so it is sent again.
            if delivered.offset() is not None:
                self.outcomes[index] = ACCEPTED
        else:
            self._errors.append((index, error, delivered.partition() or 0))

    def _read_errors(self, state: ConnectionState) -> None:
        batches: dict[tuple[str, int, int], tuple[KafkaError, list[int]]] = {}
        for index, error, partition in self._errors:
            meaning, topic = meaning_of(error), self.encoded[index][0]
            if meaning.blame is Blame.BATCH:
                batches.setdefault((topic, partition, error.code()), (error, []))[1].append(index)
            elif meaning.blame is Blame.BROKER:
                self._outage = self._outage or state.explain(error)
            elif meaning.blame is not Blame.NONE:
                self.outcomes[index] = meaning.outcome(error.str())
        for error, indexes in batches.values():
            meaning = meaning_of(error)
            outcome = meaning.outcome(error.str())
            if len(indexes) == 1:
                self.outcomes[indexes[0]] = outcome
            else:
                self._refusal = BatchRefused(
                    outcome.error, (), permanent=meaning.permanent, error_class=outcome.error_class
                )
        self._errors.clear()
