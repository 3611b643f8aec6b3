#!/usr/bin/env bash
# Apache Kafka 4.2.0 and confluent-kafka 2.16.1 (librdkafka 2.16.1)
#
# Guess: `subscribe(["^orders"])` subscribes to all topics that begin with "orders", with the new group protocol
#   (KIP-848, `group.protocol=consumer`) as with the old one.
# What happens: with the old protocol the client searches the names for the expression. With the new one the broker
#   does it, by another library, and the expression has to match the whole name: "^orders" matches the topic "orders"
#   only. The consumer gets no partition, no error, and reads nothing.
# Who is hurt: consumers with a pattern that switch the protocol, which is one line of configuration: they look
#   healthy, the group has a member, and nothing arrives.
# Instead: write `^orders.*`, which both protocols read alike.
# Source:
#   https://cwiki.apache.org/confluence/display/KAFKA/KIP-848%3A+The+Next+Generation+of+the+Consumer+Rebalance+Protocol
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1
cat >"$folder/pom.xml" <<'END'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>4.2.0</version>
    </dependency>
  </dependencies>
</project>
END
mvn --quiet --batch-mode --file "$folder/pom.xml" \
    org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory="$folder/jars" >"$folder/log"
read -r port controller < <("$folder/venv/bin/python" -c '
import socket
print(*(free.getsockname()[1] for free in [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]))')
cat >"$folder/properties" <<END
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:$controller
log.dirs=$folder/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
END
java -cp "$folder/jars/*" kafka.tools.StorageTool format --cluster-id 4L6g3nShT-eMCtK--X86sw \
    --config "$folder/properties" >>"$folder/log" 2>&1
java -Xmx256m -cp "$folder/jars/*" kafka.Kafka "$folder/properties" >>"$folder/log" 2>&1 &
server=$!
trap 'kill -KILL "$server"; wait "$server" 2>"$folder/end" || true; rm -rf "$folder"' EXIT

expected='classic, ^orders: 5 of 5 messages
classic, ^orders.*: 5 of 5 messages
consumer, ^orders: 0 of 5 messages
consumer, ^orders.*: 5 of 5 messages'

seen=$("$folder/venv/bin/python" -W ignore - "$port" 2>"$folder/clients" <<'END'
import sys
import time

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

BROKER = {"bootstrap.servers": f"127.0.0.1:{sys.argv[1]}"}
admin = AdminClient(BROKER)

admin.create_topics([NewTopic("orders-1", 1, 1)])["orders-1"].result(30)
producer = Producer(BROKER)
for _ in range(5):
    producer.produce("orders-1", value=b"paid")
producer.flush(10)
for protocol in ("classic", "consumer"):
    for pattern in ("^orders", "^orders.*"):
        config = {"group.id": f"{protocol} {pattern}", "group.protocol": protocol, "auto.offset.reset": "earliest"}
        consumer = Consumer({**BROKER, **config})
        consumer.subscribe([pattern])
        patience = 10 if (protocol, pattern) == ("consumer", "^orders") else 30
        count, end = 0, time.monotonic() + patience
        while count < 5 and time.monotonic() < end:
            message = consumer.poll(0.5)
            count += message is not None and not message.error()
        print(f"{protocol}, {pattern}: {count} of 5 messages")
        consumer.close()
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: Kafka 4.2.0 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
