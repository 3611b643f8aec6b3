"""The brokers of the suite."""

from collections.abc import Callable

from tests.faults.brokers.base import Broker
from tests.faults.brokers.kafka import Kafka
from tests.faults.brokers.nats import Nats
from tests.faults.brokers.rabbitmq import RabbitMQ
from tests.faults.brokers.redis import Redis
from tests.support.children import Nursery

BROKERS: dict[str, Callable[[Nursery], Broker]] = {
    "rabbitmq": RabbitMQ,
    "redis": Redis,
    "nats": Nats,
    "kafka": Kafka,
}
