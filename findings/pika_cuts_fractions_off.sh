#!/usr/bin/env bash
# pika 1.4.4 reading what amqp 5.4.2 (py-amqp, the client of Celery and kombu) wrote
#
# Guess: a header that is a double on the wire arrives as the same number in every client of RabbitMQ.
# What happens: pika unpacks the double and passes it to its class of long integers: 0.5 arrives as 0, -1.75 as -1,
#   and nothing is raised. Numbers in the table of headers and in lists inside it are cut alike.
# Who is hurt: consumers that read prices, ratios, sample rates or Unix times from headers of a Celery, Java or Node
#   producer.
# Instead: send fractions in the body, or as text.
# Source: https://github.com/pika/pika/issues/599, decode_value in pika/data.py
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pika==1.4.4 amqp==5.4.2 vine==5.1.0

expected="written: {'rate': 0.5, 'change': -1.75, 'prices': [9.99, 2]}
read by amqp: {'rate': 0.5, 'change': -1.75, 'prices': [9.99, 2]}
read by pika: {'rate': 0, 'change': -1, 'prices': [9, 2]}"

seen=$("$folder/venv/bin/python" - <<'END'
from amqp.serialization import dumps, loads
from pika.data import decode_table

headers = {"rate": 0.5, "change": -1.75, "prices": [9.99, 2]}
encoded = dumps("F", [headers])


def plain(value):
    """Return a value with pika's own class of integers as int."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, int) else value


print(f"written: {headers}")
print(f"read by amqp: {loads('F', encoded, 0)[0][0]}")
print(f"read by pika: {plain(decode_table(encoded, 0)[0])}")
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: pika 1.4.4 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
