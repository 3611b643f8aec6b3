"""Open a connection to the first server of a cluster that responds."""

import asyncio
import random
from collections.abc import Callable

from django_outbox.brokers.nats.client import Client, MessageHandler
from django_outbox.brokers.nats.errors import explain
from django_outbox.brokers.nats.options import ConnectionOptions, Server


class NotConnected(Exception):
    """No server could be used; the text has the reason for each one."""


async def connect(
    options: ConnectionOptions, make_client: Callable[[], Client], on_message: MessageHandler
) -> tuple[Client, Server]:
    """Connect to one server after another, in random order, so that relays spread over the cluster.

    Args:
        options: the options of the connection.
        make_client: makes a client that is not connected.
        on_message: takes the messages that arrive in the inbox.

    Raises:
        NotConnected: no server can be used.
    """
    reasons = []
    for server in random.sample(options.servers, len(options.servers)):
        client = make_client()
        try:
            await asyncio.wait_for(client.open(server, options, on_message), options.connect_timeout)
        except Exception as error:
            reasons.append(f"{server.address}: {explain(error)}")
            await client.abandon()
        except asyncio.CancelledError:
            await client.abandon()
            raise
        else:
            return client, server
    raise NotConnected(f"cannot connect to NATS at {'; '.join(reasons)}")
