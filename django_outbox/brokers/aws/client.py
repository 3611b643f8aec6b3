"""A client of boto3, which is constructed when it is first used."""

import threading
from typing import Any

import boto3

from django_outbox.brokers.aws.options import ClientOptions


class Client:
    """Constructs a client of boto3, and constructs it again if the credentials are refused.

    Clients of boto3 are thread-safe, sessions are not:
    https://docs.aws.amazon.com/boto3/latest/guide/clients.html#multithreading-or-multiprocessing-with-clients

    Args:
        service: "sqs" or "sns".
        options: how to construct it.
    """

    def __init__(self, service: str, options: ClientOptions) -> None:
        self._service = service
        self._options = options
        self._lock = threading.Lock()
        self._client: Any = None

    def get(self) -> Any:
        """Return the client. Constructing it reads files, and may ask for credentials, so it may take seconds."""
        client = self._client
        if client is None:
            with self._lock:
                client = self._client
                if client is None:
                    session = boto3.session.Session(region_name=self._options.region, **self._options.session)
                    client = self._client = session.client(
                        self._service, endpoint_url=self._options.endpoint_url, config=self._options.config
                    )
        return client

    def drop(self) -> None:
        """Close the client's connections; the next one reads the credentials again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
