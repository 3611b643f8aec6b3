#!/usr/bin/env bash
# FastStream 0.7.8 (Python), with and without orjson 3.13.0
#
# Guess: an integer of 20 digits in a JSON body is that integer for a handler, whichever packages are installed beside
#   FastStream; a parser that cannot hold it raises.
# What happens: FastStream parses with orjson as soon as it is installed, and orjson reads every integer that does not
#   fit into 64 bits as a float: 18446744073709551617 arrives as 1.8446744073709552e+19. A handler that is annotated
#   with `int` gets a validation error, one that is not gets the float. The standard library, msgspec 0.22 and
#   ujson 6.1 read the integer.
# Who is hurt: consumers of identifiers and amounts of blockchains, phone and bank numbers that the sender keeps as
#   integers: another package brings orjson along, and messages of the same sender are rounded from then on.
# Instead: send such numbers as text; where the sender cannot change, decode the body with the standard library
#   (`broker.subscriber(..., decoder=...)`).
# Source: json_loads in faststream/_internal/_compat.py; "int" in the README of orjson, which states the range of 64
#   bits for writing
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "faststream[rabbit]==0.7.8"

expected='without orjson: 18446744073709551617
with orjson: 1.8446744073709552e+19'

cat >"$folder/receive.py" <<'END'
import asyncio

from faststream.rabbit import RabbitBroker, TestRabbitBroker

broker = RabbitBroker()


@broker.subscriber("orders")
async def receive(body):
    print(body["id"])


async def main():
    async with TestRabbitBroker(broker):
        await broker.publish(b'{"id": 18446744073709551617}', "orders", content_type="application/json")


asyncio.run(main())
END
without=$("$folder/venv/bin/python" -W ignore "$folder/receive.py")
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check orjson==3.13.0
seen="without orjson: $without
with orjson: $("$folder/venv/bin/python" -W ignore "$folder/receive.py")"
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: FastStream 0.7.8 with orjson 3.13.0 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
