#!/usr/bin/env bash
# pamqp 4.0.1, which encodes the headers of aiormq and aio-pika
#
# Guess: a Python float, which is a double, is sent as AMQP's double, as py-amqp and Node's amqplib do. It comes back
#   equal.
# What happens: it is sent with 4 bytes, as AMQP's single-precision float. 7 digits are left: the Unix time
#   1732700123.456 arrives as 1732700160.0, 37 seconds later, and 0.1 as 0.10000000149011612. Nothing is raised.
# Who is hurt: producers that put `time.time()` into a header, to measure how long a message was on its way or to let
#   it expire: the result is wrong by up to a minute, also negative. Amounts and signed headers do not compare equal.
# Instead: send integers (milliseconds), a datetime, or text.
# Source: table_value and floating_point in pamqp/encode.py
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pamqp==4.0.1 amqp==5.4.2 vine==5.1.0

expected="written: {'rate': 0.1, 'sent-at': 1732700123.456}
read by pamqp: {'rate': 0.10000000149011612, 'sent-at': 1732700160.0}
read by amqp: {'rate': 0.10000000149011612, 'sent-at': 1732700160.0}"

seen=$("$folder/venv/bin/python" - <<'END'
from amqp.serialization import loads
from pamqp import decode, encode

headers = {"rate": 0.1, "sent-at": 1732700123.456}
encoded = encode.field_table(headers)
print(f"written: {headers}")
print(f"read by pamqp: {decode.field_table(encoded)[1]}")
print(f"read by amqp: {loads('F', encoded, 0)[0][0]}")
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: pamqp 4.0.1 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
