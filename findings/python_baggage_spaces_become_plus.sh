#!/usr/bin/env bash
# opentelemetry-api 1.45.2 (Python) and @opentelemetry/core 2.1.0 (JavaScript): the propagator of W3C baggage of each
#
# Guess: both encode values by the W3C's rule, percent-encoding, so a value set in one language is read in the other.
# What happens: Python encodes values as HTML forms do. A space leaves as "+", which is a character like any other in
#   baggage, and JavaScript reads "+". In the other direction Python turns each literal "+" of another sender into a
#   space.
# Who is hurt: services that pass customers, campaigns, or times with an offset ("2026-01-01T09:00+02:00") through a
#   broker or a gateway to another language: comparisons fail, and samplers and filters do not match, without an
#   error.
# Instead: percent-encode the value yourself, so that only letters, digits, "-", "." and "_" are left, or send it in a
#   header.
# Source: https://github.com/open-telemetry/opentelemetry-python/issues/5566
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check opentelemetry-api==1.45.2
npm install --silent --no-audit --no-fund --prefix "$folder" @opentelemetry/api@1.9.0 @opentelemetry/core@2.1.0

expected='Python writes customer=Ada+Lovelace
JavaScript reads Ada+Lovelace
Python reads until=09:00+02:00 as 09:00 02:00
JavaScript reads until=09:00+02:00 as 09:00+02:00'

read_in_javascript() {
    (cd "$folder" && node -e '
const { ROOT_CONTEXT, defaultTextMapGetter, propagation } = require("@opentelemetry/api");
const { W3CBaggagePropagator } = require("@opentelemetry/core");
const context = new W3CBaggagePropagator().extract(ROOT_CONTEXT, { baggage: process.argv[1] }, defaultTextMapGetter);
console.log(propagation.getBaggage(context).getAllEntries()[0][1].value);
' "$1")
}

python() { "$folder/venv/bin/python" -c "
from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
$1"; }

written=$(python 'carrier = {}
W3CBaggagePropagator().inject(carrier, baggage.set_baggage("customer", "Ada Lovelace"))
print(carrier["baggage"])')
read=$(python 'print(baggage.get_baggage("until", W3CBaggagePropagator().extract({"baggage": "until=09:00+02:00"})))')
seen="Python writes $written
JavaScript reads $(read_in_javascript "$written")
Python reads until=09:00+02:00 as $read
JavaScript reads until=09:00+02:00 as $(read_in_javascript until=09:00+02:00)"
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: opentelemetry-api 1.45.2 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
