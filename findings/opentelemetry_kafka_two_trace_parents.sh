#!/usr/bin/env bash
# opentelemetry-instrumentation-confluent-kafka 0.66b1 with confluent-kafka 2.16.1
#
# Guess: a record whose headers already name a trace (`traceparent`), because it was stored with the request and is
#   sent later by a relay, leaves with one `traceparent`: the stored one, or the producer span's.
# What happens: if the headers are a list of pairs, as Kafka's headers are, the instrumentation appends its own and
#   the record has two. Its own consumer continues the first; a reader that makes a dict of them, or that takes the
#   last as `lastHeader` in Java does, continues the second, a trace that begins in the relay. Headers given as a dict
#   get one, and the stored trace is overwritten.
# Who is hurt: outboxes and forwarders in processes that `opentelemetry-instrument` started: traces that end in the
#   relay in one service and continue in the next, for the same record.
# Instead: attach the stored context before `produce()` and leave `traceparent` out of the headers, or produce with
#   `confluent_kafka.cimpl.Producer`, which is not instrumented.
# Source: KafkaContextSetter in opentelemetry/instrumentation/confluent_kafka/utils.py
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1 opentelemetry-sdk==1.45.1 \
    opentelemetry-api==1.45.1 opentelemetry-instrumentation-confluent-kafka==0.66b1

expected='headers as a list: 2 traceparents; the first is the stored one, a dict keeps another one
headers as a dict: 1 traceparent; the first is another one, a dict keeps another one'

seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'END'
import confluent_kafka
from confluent_kafka.cimpl import Consumer
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import set_tracer_provider

set_tracer_provider(TracerProvider())
ConfluentKafkaInstrumentor().instrument()
STORED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

# The client's own mock of a cluster, so no broker is needed.
producer = confluent_kafka.Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
producer.produce("orders", value=b"list", headers=[("traceparent", STORED.encode())])
producer.produce("orders", value=b"dict", headers={"traceparent": STORED})
producer.flush(10)
[broker] = producer.list_topics(timeout=10).brokers.values()
consumer = Consumer(
    {"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "seen", "auto.offset.reset": "earliest"}
)
consumer.subscribe(["orders"])
headers = {}
for _ in range(30):
    message = consumer.poll(1)
    if message is not None and not message.error():
        headers[message.value().decode()] = message.headers()
    if len(headers) == 2:
        break
consumer.close()


def described(value):
    return "the stored one" if value == STORED.encode() else "another one"


for kind in ("list", "dict"):
    parents = [value for name, value in headers[kind] if name == "traceparent"]
    print(
        f"headers as a {kind}: {len(parents)} traceparent{'s' * (len(parents) > 1)}; "
        f"the first is {described(parents[0])}, a dict keeps {described(dict(headers[kind])['traceparent'])}"
    )
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: the instrumentation 0.66b1 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
