"""`manage.py consume_orders`: receive the shop's messages from RabbitMQ and store each one once."""

import signal
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from shop import conf
from shop.terminal import plural


class Command(BaseCommand):
    """Arguments and signals; `shop.consumer` does the work."""

    help = "Receive messages from RabbitMQ into ReceivedMessage until SIGTERM or SIGINT, each message once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queue", default=conf.QUEUE, help="The queue (default: %(default)s).")
        parser.add_argument(
            "--bind", metavar="PATTERN", default="order.*", help="Types to receive (default: %(default)s)."
        )
        parser.add_argument("--max-messages", metavar="N", type=int, help="Stop after N messages.")
        parser.add_argument("--idle-timeout", metavar="S", type=float, help="Stop after S seconds without a message.")
        parser.add_argument("--declare-only", action="store_true", help="Declare and bind the queue, and stop.")

    def handle(self, *args: Any, **options: Any) -> None:
        if not conf.BROKER_URL.startswith(("amqp://", "amqps://")):
            raise CommandError(
                "BROKER_URL does not name RabbitMQ, so there is no queue to read. "
                "For example: BROKER_URL=amqp://guest:guest@127.0.0.1:5672/%2F"
            )
        import pika.exceptions  # noqa: PLC0415 - if it is missing, the system checks have already reported it

        try:
            self._consume(options)
        except pika.exceptions.AMQPError as error:
            raise CommandError(f"RabbitMQ: {error!r}") from error

    def _consume(self, options: dict[str, Any]) -> None:
        from shop.consumer import Consumer  # noqa: PLC0415 - as above

        consumer = Consumer(conf.BROKER_URL, exchange=conf.EXCHANGE, queue=options["queue"])

        def stop(signum: int, frame: FrameType | None) -> None:
            consumer.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        try:
            consumer.declare()
            consumer.bind(options["bind"])
            if options["declare_only"]:
                return
            self.stderr.write(f"Reading {options['queue']}. Press Ctrl-C to stop.")
            summary = consumer.consume(max_messages=options["max_messages"], idle_timeout=options["idle_timeout"])
        finally:
            consumer.close()
        self.stdout.write(f"{plural(summary.received, 'message')} received, {plural(summary.duplicates, 'duplicate')}.")
