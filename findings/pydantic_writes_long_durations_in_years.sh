#!/usr/bin/env bash
# pydantic 2.13.3 (Python), and the readers isodate 0.7.2 (Python) and luxon 3.7.2 (JavaScript)
#
# Guess: a timedelta knows no months and years, so pydantic writes days and seconds, as Django does: 400 days are
#   "P400D" plus zeros, which is the same length for every reader.
# What happens: 365 days become a year: 400 days are written as "P1Y35D". Readers of ISO 8601 take a year for a year of
#   the calendar. Added to 1 June 2027, a span with a leap day, it ends a day later than the timedelta. isodate does not
#   return a timedelta at all: the `total_seconds()` of its result are those of the 35 days.
# Who is hurt: events and APIs with periods of notice, warranties and licences of a year or more. The sender's own tests
#   pass, because pydantic counts the year back as 365 days.
# Instead: send seconds or days as an integer, or the date at which the period ends.
# Source: https://github.com/pydantic/speedate/blob/main/src/duration.rs
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pydantic==2.13.3 isodate==0.7.2
npm install --silent --prefix "$folder" luxon@3.7.2

expected='364 days: P364D
400 days: P1Y35D
pydantic reads 400 days back: True
1 June 2027 and 400 days: 2028-07-05
isodate: 2028-07-06, total_seconds() of 35 days
luxon: 2028-07-06'

seen=$(
    "$folder/venv/bin/python" - <<'END'
from datetime import date, timedelta

import isodate
from pydantic import TypeAdapter

duration = TypeAdapter(timedelta)
for days in (364, 400):
    print(f"{days} days: {duration.dump_python(timedelta(days=days), mode='json')}")
text = duration.dump_python(timedelta(days=400), mode="json")
print("pydantic reads 400 days back:", duration.validate_python(text) == timedelta(days=400))
print("1 June 2027 and 400 days:", date(2027, 6, 1) + timedelta(days=400))
read = isodate.parse_duration(text)
print(f"isodate: {date(2027, 6, 1) + read}, total_seconds() of {read.total_seconds() / 86400:.0f} days")
END
    cd "$folder"
    node - <<'END'
const { DateTime, Duration } = require("luxon");
console.log("luxon:", DateTime.fromISO("2027-06-01").plus(Duration.fromISO("P1Y35D")).toISODate());
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: pydantic 2.13.3 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
