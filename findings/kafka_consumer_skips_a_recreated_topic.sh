#!/usr/bin/env bash
# Apache Kafka 4.2.0 and confluent-kafka 2.16.1 (librdkafka 2.16.1)
#
# Guess: topics have had IDs since Kafka 3, so a running consumer notices that its topic was deleted and created
#   again, and reads the new one from the beginning with `auto.offset.reset=earliest`.
# What happens: it goes on at its old position. After 5 records of the old topic, it reads records 5 to 9 of the new
#   one; 0 to 4 are skipped, and neither an error nor a log line says so. Only if it comes back before the new topic
#   has reached the old position does it begin at the oldest record.
# Who is hurt: projects that recreate a topic to change its partitions or to empty it while consumers run.
# Instead: stop the consumers first; the group's offsets are deleted with the topic.
# Source: https://github.com/confluentinc/librdkafka/blob/master/INTRODUCTION.md
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

expected='old topic, records 0 to 4: read 0 1 2 3 4
new topic, records 0 to 9: read 5 6 7 8 9'

seen=$("$folder/venv/bin/python" -W ignore - "$port" 2>"$folder/clients" <<'END'
import sys
import time

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

BROKER = {"bootstrap.servers": f"127.0.0.1:{sys.argv[1]}"}
admin = AdminClient(BROKER)

producer = Producer(BROKER)


def create(topic, count):
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    for number in range(count):
        producer.produce(topic, value=str(number).encode())
    assert producer.flush(30) == 0


def read(last):
    """Return what arrives, up to a value, or what has arrived after 30 seconds."""
    values, end = [], time.monotonic() + 30
    while last not in values and time.monotonic() < end:
        message = consumer.poll(0.5)
        if message is not None and not message.error():
            values.append(message.value().decode())
    return " ".join(values)


create("orders", 5)
consumer = Consumer({**BROKER, "group.id": "billing", "auto.offset.reset": "earliest"})
consumer.subscribe(["orders"])
print(f"old topic, records 0 to 4: read {read('4')}")
# A consumer that is not paused does the same, unless it comes back before the new topic has 5 records.
consumer.pause(consumer.assignment())
admin.delete_topics(["orders"])["orders"].result(30)
time.sleep(1)
create("orders", 10)
consumer.resume(consumer.assignment())
print(f"new topic, records 0 to 9: read {read('9')}")
consumer.close()
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: confluent-kafka 2.16.1 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
