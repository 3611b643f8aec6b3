"""The channels of one connection to RabbitMQ."""

from collections.abc import Callable
from functools import partial

import pika

from django_outbox.brokers.rabbitmq.batch import Batch
from django_outbox.brokers.rabbitmq.channel import BatchChannel


class ChannelPool:
    """Opens, finds and abandons channels. It lives on the connection's thread.

    Args:
        make_channel: opens a channel over a connection.

    Attributes:
        channels: the channels in use, those that are still opening included.
        closing: the number of abandoned channels that the broker has not closed yet.
    """

    def __init__(self, make_channel: Callable[[pika.SelectConnection], BatchChannel]) -> None:
        self.channels: list[BatchChannel] = []
        self.closing = 0
        self._make_channel = make_channel
        self._max_channels = 0

    def attach(self, connection: pika.SelectConnection) -> None:
        """Use a connection that has just been opened."""
        self.channels.clear()
        self._max_channels = int(connection.params.channel_max)
        self._open = partial(self._make_channel, connection)

    def open_channel(self) -> BatchChannel:
        """Begin to open a channel."""
        channel = self._open()
        self.channels.append(channel)
        return channel

    @property
    def room(self) -> int:
        """Number of further channels that the broker allows."""
        return self._max_channels - len(self.channels) - self.closing

    @property
    def opening(self) -> int:
        """Number of channels that are not open yet."""
        return sum(not channel.is_open for channel in self.channels)

    @property
    def batches(self) -> list[Batch]:
        """The batches in flight."""
        return [channel.batch for channel in self.channels if channel.batch is not None]

    @property
    def is_idle(self) -> bool:
        """Whether the broker owes no response on any channel."""
        return all(channel.is_free for channel in self.channels)

    @property
    def seconds_waiting(self) -> float:
        """Seconds for which the channel that has waited longest has waited for a response."""
        return max((channel.seconds_waiting for channel in self.channels), default=0.0)

    def restart_clocks(self) -> None:
        """Count `seconds_waiting` from now on."""
        for channel in self.channels:
            channel.restart_clock()

    def abandon(self, channel: BatchChannel) -> None:
        """Close a channel. Its number can be used again only when the broker has closed it too."""
        self.channels.remove(channel)
        channel.close()
        self.closing += 1
