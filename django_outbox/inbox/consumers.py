"""Construct consumers from the settings, and check them.

`django_outbox.conf` finds E035, `build_consumer` E036 to E039, and the system check W036 as well.
"""

import datetime
from collections.abc import Collection, Iterator, Sequence

from django.core.checks import CheckMessage, Warning

from django_outbox.brokers.consumer import Consumer
from django_outbox.brokers.registry import construct
from django_outbox.checks import of_settings
from django_outbox.conf import ConsumerConfig, OutboxSettings, SettingsProblem, get_settings

MIN_RETENTION = datetime.timedelta(days=1)
"""Shortest retention without a warning: an outage may delay the redelivery of a handled message by that long."""

EXAMPLE = (
    'For example: "CONSUMERS": {"billing": {"BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQConsumer", '
    '"OPTIONS": {"url": "amqp://user:password@host:5672/vhost", "queue": "billing"}}}.'
)


def make_consumers(aliases: Sequence[str] | None = None) -> list[Consumer]:
    """Construct the consumers with these aliases from the settings, or all of them; they do not connect yet."""
    configs = get_settings().consumers
    if not configs:
        raise SettingsProblem("E035", "OUTBOX has no CONSUMERS.", EXAMPLE)
    for alias in aliases or ():
        if alias not in configs:
            raise SettingsProblem(
                "E035", f"OUTBOX has no consumer {alias!r}.", f"Configured consumers: {', '.join(sorted(configs))}."
            )
    publishers = get_settings().publishers
    return [build_consumer(alias, configs[alias], publishers) for alias in dict.fromkeys(aliases or configs)]


def build_consumer(alias: str, config: ConsumerConfig, publishers: Collection[str]) -> Consumer:
    """Construct a consumer from its entry in the settings, given the known publishers, or raise E036 to E039."""
    where = f"OUTBOX['CONSUMERS'][{alias!r}]"
    consumer: Consumer = construct(Consumer, alias, config, where, ("E036", "E037", "E038"))
    if consumer.publisher not in publishers:
        raise SettingsProblem(
            "E039",
            f"{where} stores messages for the publisher {consumer.publisher!r}, which is not in OUTBOX['PUBLISHERS'].",
            f'Add "{consumer.publisher}": {{"BACKEND": "django_outbox.handlers.HandlersPublisher"}}, or set the option '
            f"publisher to one of {', '.join(sorted(publishers))}.",
        )
    return consumer


@of_settings
def check_consumers(settings: OutboxSettings) -> Iterator[CheckMessage]:
    """Check that every consumer can be constructed, and that it recognizes redelivered messages."""
    retention = settings.retention
    for alias, config in settings.consumers.items():
        try:
            consumer = build_consumer(alias, config, settings.publishers)
        except SettingsProblem as problem:
            yield problem.as_check
            continue
        if not consumer.remember and retention is not None and retention < MIN_RETENTION:
            yield Warning(
                f"OUTBOX['CONSUMERS'][{alias!r}] recognizes a message that comes again by its row, but "
                f"OUTBOX['RETENTION'] deletes that row {retention} after the message was handled.",
                hint="If the broker delivers the message again later than that, it is handled twice. Set the "
                "consumer's option remember to True, or RETENTION to at least a day.",
                id="django_outbox.W036",
            )
