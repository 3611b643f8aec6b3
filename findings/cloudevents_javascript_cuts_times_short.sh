#!/usr/bin/env bash
# cloudevents 10.0.0 (JavaScript), with cloudevents 2.2.0 (Python) beside it
#
# Guess: an SDK that reads an event keeps its `time` as it was written, so that a service in JavaScript can send the
#   event on, or compare its time with that of the sender's database.
# What happens: the JavaScript SDK makes a Date of it and cuts microseconds off, without a word: 03:04:05.123456Z is
#   03:04:05.123Z as soon as it is read, and in what is sent on. Python keeps microseconds.
# Who is hurt: receivers behind a gateway in JavaScript that sort events by `time`, take it as a version, or look for
#   the row with this time: the events of one millisecond are equal, and an event is older than its own row.
# Instead: order events by a number in the data or by their place in the log; compare times in milliseconds.
# Source: the constructor in src/event/cloudevent.ts; RFC 3339, which `time` has to follow, allows any fraction
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check cloudevents==2.2.0
npm install --silent --prefix "$folder" cloudevents@10.0.0

expected='JavaScript: 2026-01-02T03:04:05.123456Z is sent on as 2026-01-02T03:04:05.123Z
Python: 2026-01-02T03:04:05.123456Z is sent on as 2026-01-02T03:04:05.123456Z'

cat >"$folder/forward.js" <<'END'
const { HTTP } = require("cloudevents");
const [time] = process.argv.slice(2);
const headers = { "ce-type": "order.paid", "ce-source": "/shop", "ce-id": "1", "ce-specversion": "1.0" };
headers["ce-time"] = time;
headers["content-type"] = "application/json";
const event = HTTP.toEvent({ headers, body: "{}" });
console.log(`JavaScript: ${time} is sent on as ${HTTP.binary(event).headers["ce-time"]}`);
END
cat >"$folder/forward.py" <<'END'
import sys

from cloudevents.core.bindings.http import HTTPMessage, from_http_event, to_binary_event

time = sys.argv[1]
headers = {"ce-type": "order.paid", "ce-source": "/shop", "ce-id": "1", "ce-specversion": "1.0", "ce-time": time}
event = from_http_event(HTTPMessage({**headers, "content-type": "application/json"}, b"{}"))
print(f"Python: {time} is sent on as {to_binary_event(event).headers['ce-time']}")
END
time=2026-01-02T03:04:05.123456Z
seen="$(cd "$folder" && node forward.js "$time")
$("$folder/venv/bin/python" "$folder/forward.py" "$time")"
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: cloudevents 10.0.0 (JavaScript) does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
