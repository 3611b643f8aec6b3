#!/usr/bin/env bash
# pydantic 2.13.3
#
# Guess: a field of type Decimal has all digits of a number in the JSON, because `model_validate_json()` has the text,
#   as `json.loads(text, parse_float=Decimal)` has. It is what Decimal is chosen for.
# What happens: a number with a point is made a float first, and the Decimal is made of that: cents and the last decimals
#   of a token are gone, in strict mode too. A field of type int takes 9007199254740993.0 and returns ...992. Nothing is
#   raised.
# Who is hurt: consumers of events and webhooks of Java or .NET, which write BigDecimal and decimal as JSON numbers:
#   large amounts, rates and quantities with 18 decimals differ from the sender's.
# Instead: let the sender write text, or validate `json.loads(text, parse_float=Decimal)` as Python values.
# Source: https://github.com/pydantic/pydantic/issues/9180
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pydantic==2.13.3

expected='number 12345678901234567.89: 12345678901234568, strict: 12345678901234568
number 1.234567890123456789: 1.2345678901234567, strict: 1.2345678901234567
text "12345678901234567.89": 12345678901234567.89
parse_float=Decimal: 12345678901234567.89
int from 9007199254740993.0: 9007199254740992'

seen=$("$folder/venv/bin/python" - <<'END'
import json
from decimal import Decimal

from pydantic import BaseModel, TypeAdapter


class Payment(BaseModel):
    amount: Decimal


for number in ("12345678901234567.89", "1.234567890123456789"):
    text = f'{{"amount": {number}}}'
    lax, strict = (Payment.model_validate_json(text, strict=strict).amount for strict in (False, True))
    print(f"number {number}: {lax}, strict: {strict}")
text = Payment.model_validate_json('{"amount": "12345678901234567.89"}')
print('text "12345678901234567.89":', text.amount)
parsed = json.loads('{"amount": 12345678901234567.89}', parse_float=Decimal)
print("parse_float=Decimal:", Payment.model_validate(parsed).amount)
print("int from 9007199254740993.0:", TypeAdapter(int).validate_json("9007199254740993.0"))
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: pydantic 2.13.3 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
