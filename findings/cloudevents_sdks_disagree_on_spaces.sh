#!/usr/bin/env bash
# cloudevents 2.2.0 (Python) with cloudevents 10.0.0 (JavaScript) and github.com/cloudevents/sdk-go/v2 2.16.2 (Go)
#
# Guess: the attributes of an event in an HTTP request (binary mode) are the same in every official SDK, because the
#   binding says how each character is written.
# What happens: Python percent-encodes spaces, quotation marks, % and everything but ASCII, and decodes what it reads,
#   as the binding asks. JavaScript and Go do neither: the subject "order 1" of Python is "order%201" for them, and
#   their "50%25 off" is "50% off" for Python.
# Who is hurt: services that route, group or deduplicate by `subject`, `partitionkey` or an extension with a space or a
#   name: one key is two keys, by the language of the sender, and nothing is raised.
# Instead: give attributes values of letters, digits and - _ . / : only, or send events in structured mode.
# Source: section 3.1.3.2 of the HTTP binding of CloudEvents 1.0.2; cloudevents/core/bindings/http.py (Python),
#   src/message/http/headers.ts (JavaScript), v2/protocol/http/write_request.go (Go)
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check cloudevents==2.2.0
npm install --silent --prefix "$folder" cloudevents@10.0.0
export GOPATH="$folder/gopath" GOCACHE="$folder/gocache" GOFLAGS=-mod=mod

expected='Python writes order%201
JavaScript reads order%201
Go reads order%201
JavaScript writes 50%25 off
Go writes 50%25 off
Python reads 50% off'

write='
from cloudevents.core.bindings.http import to_binary_event
from cloudevents.core.v1.event import CloudEvent

event = CloudEvent({"type": "order.paid", "source": "/shop", "id": "1", "specversion": "1.0", "subject": "order 1"}, {})
print(to_binary_event(event).headers["ce-subject"])
'
read='
import sys

from cloudevents.core.bindings.http import HTTPMessage, from_http_event

headers = {"ce-type": "order.paid", "ce-source": "/shop", "ce-id": "1", "ce-specversion": "1.0"}
headers |= {"ce-subject": sys.argv[1], "content-type": "application/json"}
print(from_http_event(HTTPMessage(headers, b"{}")).get_subject())
'
cat >"$folder/event.js" <<'END'
const { CloudEvent, HTTP } = require("cloudevents");
const [read, write] = process.argv.slice(2);
const headers = { "ce-type": "order.paid", "ce-source": "/shop", "ce-id": "1", "ce-specversion": "1.0" };
headers["content-type"] = "application/json";
headers["ce-subject"] = read;
console.log(`JavaScript reads ${HTTP.toEvent({ headers, body: "{}" }).subject}`);
const event = new CloudEvent({ type: "order.paid", source: "/shop", id: "1", subject: write, data: {} });
console.log(`JavaScript writes ${HTTP.binary(event).headers["ce-subject"]}`);
END
mkdir "$folder/go"
cat >"$folder/go/main.go" <<'END'
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
)

func main() {
	request, _ := http.NewRequest("POST", "http://localhost/", strings.NewReader("{}"))
	for name, value := range map[string]string{
		"ce-type": "order.paid", "ce-source": "/shop", "ce-id": "1", "ce-specversion": "1.0",
		"ce-subject": os.Args[1], "content-type": "application/json",
	} {
		request.Header.Set(name, value)
	}
	read, err := cehttp.NewEventFromHTTPRequest(request)
	if err != nil {
		panic(err)
	}
	fmt.Println("Go reads", read.Subject())
	written := event.New()
	written.SetType("order.paid")
	written.SetSource("/shop")
	written.SetID("1")
	written.SetSubject(os.Args[2])
	sent, err := cehttp.NewHTTPRequestFromEvent(context.Background(), "http://localhost/", written)
	if err != nil {
		panic(err)
	}
	fmt.Println("Go writes", sent.Header.Get("ce-subject"))
}
END
(cd "$folder/go" && go mod init example && go get github.com/cloudevents/sdk-go/v2@v2.16.2) 2>/dev/null

written=$("$folder/venv/bin/python" -c "$write")
script=$(cd "$folder" && node event.js "$written" '50%25 off')
program=$(cd "$folder/go" && go run . "$written" '50%25 off')
sent=$(sed -n 's/^Go writes //p' <<<"$program")
seen="Python writes $written
$(grep reads <<<"$script")
$(grep reads <<<"$program")
$(grep writes <<<"$script")
$(grep writes <<<"$program")
Python reads $("$folder/venv/bin/python" -c "$read" "$sent")"
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: the SDKs of CloudEvents do not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
