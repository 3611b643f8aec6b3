"""Requests to JetStream's API: https://docs.nats.io/reference/reference-protocols/nats_api_reference."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from nats import errors

from django_outbox.brokers.nats.client import Client
from django_outbox.brokers.nats.options import ConnectionOptions

STREAM_NOT_FOUND = 10059
"""JSStreamNotFoundErr: https://github.com/nats-io/nats-server/blob/main/server/errors.json."""

CONSUMER_NOT_FOUND = 10014
"""JSConsumerNotFoundErr."""

NOT_ENABLED = "JetStream is not enabled on the server, or not for this account; start nats-server with -js"


class NoAnswer(Exception):
    """JetStream did not respond as it should; the text is the reason.

    Args:
        reason: the reason.
        code: the error code of JetStream, if it has sent one.
    """

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(reason)
        self.code = code


class NotPermitted(NoAnswer):
    """The user may not ask JetStream."""


class Api:
    """JetStream's API over one connection.

    Args:
        client: the connection.
        options: its options.
    """

    def __init__(self, client: Client, options: ConnectionOptions) -> None:
        self._client = client
        self._prefix = options.api
        self._seconds = options.stall_timeout

    async def ask(self, name: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the response to a request.

        Args:
            name: the subject after the prefix of the API.
            request: the body.

        Raises:
            NoAnswer: there is none, or it is an error.
        """
        subject = f"{self._prefix}.{name}"
        data = b"" if request is None else json.dumps(request).encode()
        try:
            message = await self._client.request(subject, data, timeout=self._seconds)
            response: dict[str, Any] = json.loads(message.data)
        except errors.NoRespondersError:
            raise NoAnswer(NOT_ENABLED) from None
        except (errors.Error, asyncio.TimeoutError, ValueError) as error:
            if self._client.is_denied(subject):
                raise NotPermitted(f"permit the user to publish to {subject}") from None
            reason = "does not respond" if isinstance(error, asyncio.TimeoutError) else f"failed: {error}"
            raise NoAnswer(f"JetStream {reason}: {subject}") from None
        problem = response.get("error")
        if problem is not None:
            code = problem.get("err_code", 0)
            raise NoAnswer(f"JetStream: {problem.get('description')} (error {code})", code)
        return response
