#!/usr/bin/env bash
# FastStream 0.7.8 (Python)
#
# Guess: a message with the content type application/cloudevents+json is JSON for a handler, as one with
#   application/json is: the suffix +json says so (RFC 6839).
# What happens: FastStream compares content types as text. The handler gets the body as bytes; one that is annotated
#   with a model or a dict gets a validation error for a valid event, and the broker's default rejects the message
#   without a dead-letter queue. Without any content type, the same body is parsed.
# Who is hurt: consumers of events in structured mode, such as those of Knative, Azure Event Grid or Dapr, and of every
#   other type with +json (application/problem+json): each event is lost with a line in the log.
# Instead: read the body in a decoder (`decoder=`) that looks at the suffix, or let the sender use binary mode, whose
#   content type is that of the data.
# Source: decode_message in faststream/message/utils.py; RFC 6839, section 3.1
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "faststream[rabbit]==0.7.8"

expected="application/json: {'id': '1'}, a model of it
application/cloudevents+json: b'{\"id\": \"1\"}', ValidationError
no content type: {'id': '1'}, a model of it"

seen=$("$folder/venv/bin/python" -W ignore - <<'END'
import asyncio

from faststream.rabbit import RabbitBroker, TestRabbitBroker
from pydantic import BaseModel, ValidationError

broker = RabbitBroker()
bodies = []


class Event(BaseModel):
    id: str


@broker.subscriber("any")
async def receive(body):
    bodies.append(body)


@broker.subscriber("typed")
async def receive_event(event: Event):
    pass


async def main():
    async with TestRabbitBroker(broker):
        for content_type in ("application/json", "application/cloudevents+json", None):
            await broker.publish(b'{"id": "1"}', "any", content_type=content_type)
            try:
                await broker.publish(b'{"id": "1"}', "typed", content_type=content_type)
                result = "a model of it"
            except ValidationError as error:
                result = type(error).__name__
            print(f"{content_type or 'no content type'}: {bodies[-1]}, {result}")


asyncio.run(main())
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: FastStream 0.7.8 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
