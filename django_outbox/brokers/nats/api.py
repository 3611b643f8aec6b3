"""Requests to JetStream's API: https://docs.nats.io/reference/reference-protocols/nats_api_reference."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from nats import errors

from django_outbox.brokers.nats.client import JetStreamClient
from django_outbox.brokers.nats.errors import BUSY_WAIT
from django_outbox.brokers.nats.options import NANOSECONDS, NatsOptions
from django_outbox.messages import Outcome, rejected, set_aside, unanswered


class NoAnswer(Exception):
    """JetStream did not respond as it should; the text is the reason."""


class NotPermitted(NoAnswer):
    """The user may not ask JetStream."""


class NotUsable(Exception):
    """No server, or the durable consumer, can be used; the text has the reason and the remedy."""


class Api:
    def __init__(self, client: JetStreamClient, options: NatsOptions) -> None:
        self._client = client
        self._seconds = options.stall_timeout

    # Streams

    async def judge(self, subject: str, *, stalled: bool) -> Outcome:
        """Return the outcome of messages that no stream has confirmed: a wrong subject differs from an outage.

        If they are not stalled, the server knew no subscriber for them; otherwise nothing responded to them.
        """
        try:
            found = await self._ask("STREAM.NAMES", {"subject": subject})
        except NotPermitted as error:
            reason = f"no stream has confirmed the message; whether one has its subject cannot be found out: {error}"
            return set_aside(reason, BUSY_WAIT, error_class="nats.not_confirmed")
        except NoAnswer as error:
            return unanswered(str(error))
        if not found.get("streams"):
            text = (
                f"no stream has the subject {subject!r}; add it to a stream's subjects, or correct the option subject"
            )
            return rejected(text, error_class="nats.no_stream")
        stream = found["streams"][0]
        if stalled:
            reason = f"the stream {stream!r} confirms nothing: it is without quorum, has no_ack set, or is busy"
            return set_aside(reason, BUSY_WAIT, error_class="nats.stalled")
        return set_aside(f"the stream {stream!r} has no leader", BUSY_WAIT, error_class="nats.no_leader")

    # Durable consumers

    async def bind(self, stream: str, name: str) -> float:
        """Return the seconds of a durable consumer's `ack_wait`. Raises `NotUsable`."""
        place = f"the consumer {name!r} of stream {stream!r}"
        try:
            config = (await self._read_info(f"{stream}.{name}"))["config"]
        except NoAnswer as error:
            raise NotUsable(f"{place}: {error}; correct the options stream and durable") from None
        if config.get("ack_policy") != "explicit" or config.get("max_deliver", -1) > 0 or config.get("headers_only"):
            text = "loses messages: it must have ack_policy explicit, max_deliver -1, and no headers_only"
            raise NotUsable(f"{place} {text}")
        ack_wait: float = config.get("ack_wait", 30 * NANOSECONDS) / NANOSECONDS
        return ack_wait

    async def count_unsettled(self, stream: str, name: str) -> int:
        """Return the number of messages of a durable consumer that were delivered and are not settled."""
        found = await self._read_info(f"{stream}.{name}")
        return int(found["num_ack_pending"])

    async def _read_info(self, place: str) -> dict[str, Any]:
        found = await self._ask(f"CONSUMER.INFO.{place}")
        if "config" not in found:
            # While a consumer is being deleted, the response has neither its information nor an error.
            raise NoAnswer("JetStream: consumer not found")
        return found

    async def _ask(self, name: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        subject = f"$JS.API.{name}"
        data = b"" if request is None else json.dumps(request).encode()
        try:
            message = await self._client.request(subject, data, timeout=self._seconds)
            response: dict[str, Any] = json.loads(message.data)
        except errors.NoRespondersError:
            text = "JetStream is not enabled on the server, or not for this account; start nats-server with -js"
            raise NoAnswer(text) from None
        except (errors.Error, asyncio.TimeoutError, ValueError) as error:
            if self._client.is_denied(subject):
                raise NotPermitted(f"permit the user to publish to {subject}") from None
            reason = "does not respond" if isinstance(error, asyncio.TimeoutError) else f"failed: {error}"
            raise NoAnswer(f"JetStream {reason}: {subject}") from None
        problem = response.get("error")
        if problem is not None:
            raise NoAnswer(f"JetStream: {problem.get('description')} (error {problem.get('err_code', 0)})")
        return response
