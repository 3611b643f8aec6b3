#!/usr/bin/env bash
# pika 1.4.4 (Python) writes, amqplib 2.3.1 and rabbitmq-client 5.0.8 (JavaScript) read
#
# Guess: a Decimal in the headers of a message, which pika sends as AMQP's decimal, is the same number for every client:
#   -12.50 is 125 and one place, with its sign.
# What happens: pika writes the digits with a sign, and amqplib reads them without one, as the specification of AMQP
#   0-9-1 has them: -12.50 arrives as 429496717.1. rabbitmq-client reads -12.5. Positive decimals arrive equal in both.
# Who is hurt: services that put amounts, balances or differences in temperature into headers: a refund becomes a
#   payment of hundreds of millions, and nothing is raised.
# Instead: send amounts in the body, or as text.
# Source: encode_value in pika/data.py; decodeFields in lib/codec.js of amqplib; field tables in
#   https://www.rabbitmq.com/amqp-0-9-1-errata
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pika==1.4.4
npm install --silent --prefix "$folder" amqplib@2.3.1 rabbitmq-client@5.0.8

expected='amqplib: 12.50 is 12.5, -12.50 is 429496717.1
rabbitmq-client: 12.50 is 12.5, -12.50 is -12.5'

cat >"$folder/read.js" <<'END'
const buffer = Buffer.from(process.argv[2], "hex");
const { decodeFields } = require("./node_modules/amqplib/lib/codec.js");
const { paid, refunded } = decodeFields(buffer.subarray(4));
const read = ({ value: { digits, places } }) => digits / 10 ** places;
console.log(`amqplib: 12.50 is ${read(paid)}, -12.50 is ${read(refunded)}`);

// rabbitmq-client exports no decoder of tables: read a frame with a header, "a message of these headers".
const { FrameType, decodeFrame } = require("./node_modules/rabbitmq-client/lib/codec.js");
const frame = Buffer.alloc(7 + 14 + buffer.length + 1);
frame.writeUInt8(FrameType.HEADER, 0);
frame.writeUInt16BE(1, 1);
frame.writeUInt32BE(14 + buffer.length, 3);
frame.writeUInt16BE(60, 7);
frame.writeUInt16BE(0x2000, 19);
buffer.copy(frame, 21);
frame.writeUInt8(0xce, frame.length - 1);
let offset = 0;
const take = (size) => {
    const part = frame.subarray(offset, offset + size);
    offset += size;
    return part;
};
(async () => {
    const { fields } = await decodeFrame(async (size) => take(size));
    const { paid, refunded } = fields.headers;
    const read = ({ scale, value }) => value / 10 ** scale;
    console.log(`rabbitmq-client: 12.50 is ${read(paid)}, -12.50 is ${read(refunded)}`);
})();
END
seen=$(node "$folder/read.js" "$("$folder/venv/bin/python" - <<'END'
from decimal import Decimal

from pika.data import encode_table

pieces = []
encode_table(pieces, {"paid": Decimal("12.50"), "refunded": Decimal("-12.50")})
print(b"".join(pieces).hex())
END
)")
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: pika 1.4.4 and amqplib 2.3.1 do not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
