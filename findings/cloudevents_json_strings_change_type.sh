#!/usr/bin/env bash
# cloudevents 2.2.0 (Python), the new API in `cloudevents.core`
#
# Guess: data that is a str, with the content type application/json, is a JSON string: the body of an HTTP request, a
#   record or a message is "5" with quotation marks, as version 1 of this SDK wrote it, and arrives as a str.
# What happens: in binary mode the str is the body as it stands. The string "5" arrives as the integer 5, "true" as
#   True, and "007" as "007" only because the reader falls back to text: for other SDKs it is a body that is not JSON.
#   In structured mode the same event arrives unchanged.
# Who is hurt: projects that move to version 2, or change the mode, with events that are a single string (an order
#   number, a state): the receiver's type depends on the digits.
# Instead: pass `json.dumps(value)` as data in binary mode, or make the data an object.
# Source: JSONFormat.write_data and read_data in cloudevents/core/formats/json.py
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check cloudevents==2.2.0

expected="data '5': version 1 sends b'\"5\"', read as '5'; version 2 sends b'5', read as 5; structured '5'
data 'true': version 1 sends b'\"true\"', read as 'true'; version 2 sends b'true', read as True; structured 'true'
data '007': version 1 sends b'\"007\"', read as '007'; version 2 sends b'007', read as '007'; structured '007'"

seen=$("$folder/venv/bin/python" -W ignore - <<'END'
from cloudevents.core.bindings import http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1.http import CloudEvent as FirstCloudEvent
from cloudevents.v1.http import from_http, to_binary

attributes = {"id": "1", "source": "/shop", "type": "order.paid", "specversion": "1.0"}
attributes["datacontenttype"] = "application/json"
form = JSONFormat()
for data in ("5", "true", "007"):
    headers, first = to_binary(FirstCloudEvent(attributes, data))
    event = CloudEvent(attributes, data)
    second = http.to_binary(event, form)
    structured = http.from_structured(http.to_structured(event, form), form, CloudEvent)
    print(
        f"data {data!r}: version 1 sends {first!r}, read as {from_http(headers, first).data!r}; "
        f"version 2 sends {second.body!r}, read as {http.from_binary(second, form, CloudEvent).get_data()!r}; "
        f"structured {structured.get_data()!r}"
    )
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: cloudevents 2.2.0 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
