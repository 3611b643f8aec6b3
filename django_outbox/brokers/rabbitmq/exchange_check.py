"""Ask the broker whether an exchange exists."""

import threading

import pika
from pika.channel import Channel

from django_outbox.brokers.rabbitmq.errors import explain_channel


class ExchangeCheck:
    """A passive declaration over its own channel, which the broker closes if the exchange is missing.

    `begin` and `end` are called on the connection's thread, `wait` on any other one.

    Args:
        exchange: the name of the exchange.
    """

    def __init__(self, exchange: str) -> None:
        self._exchange = exchange
        self._has_ended = threading.Event()
        self._problem = ""

    def begin(self, connection: pika.SelectConnection) -> None:
        """Ask over a connection that is open."""
        channel = connection.channel(on_open_callback=self._on_open)
        channel.add_on_close_callback(lambda _channel, error: self.end(explain_channel(error)))

    def end(self, problem: str) -> None:
        """Note the answer: a problem, or an empty string if there is none. Only the first call counts."""
        if not self._has_ended.is_set():
            self._problem = problem
            self._has_ended.set()

    def wait(self, seconds: float) -> str:
        """Return the problem with the exchange, on one line with the remedy; an empty string if there is none."""
        if not self._has_ended.wait(seconds):
            return f"RabbitMQ has not responded for {seconds:g} s when asked for the exchange {self._exchange!r}"
        return self._problem

    def _on_open(self, channel: Channel) -> None:
        def on_found(_frame: object) -> None:
            self.end("")
            channel.close()

        channel.exchange_declare(self._exchange, passive=True, callback=on_found)
