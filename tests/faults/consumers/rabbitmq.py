"""A consumer that reads the queues of RabbitMQ."""

import time
from typing import Any

import pika
import pika.exceptions

from tests.faults.brokers.rabbitmq import ALL_QUEUES, DEAD
from tests.faults.consumers.journals import ACK_PAUSE, Journals, consume

PREFETCH = 500


def read(url: str, journals: Journals) -> None:
    """Note deliveries, and acknowledge them now and then."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        last, acknowledged = 0, 0.0

        def note(_channel: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            nonlocal last
            id = str(properties.message_id)
            if method.exchange == DEAD:
                journals.note_dead(id, again=method.redelivered)
            else:
                key = str((properties.headers or {}).get("outbox-key", ""))
                journals.note(id, key, body, again=method.redelivered)
            last = method.delivery_tag

        for queue in ALL_QUEUES:
            channel.basic_consume(queue, note)
        while not journals.stopping:
            if not journals.reading:
                time.sleep(0.05)
                continue
            # Returns early when something came.
            connection.process_data_events(time_limit=0.1)
            if last:
                journals.flush()
                if time.monotonic() > acknowledged + ACK_PAUSE:
                    channel.basic_ack(last, multiple=True)
                    last, acknowledged = 0, time.monotonic()
        # What the socket still holds would count as lost.
        noted = -1
        while noted != last:
            noted = last
            connection.process_data_events(time_limit=0.1)
        journals.flush()
        if last:
            channel.basic_ack(last, multiple=True)


if __name__ == "__main__":
    consume(read, (pika.exceptions.AMQPError,))
