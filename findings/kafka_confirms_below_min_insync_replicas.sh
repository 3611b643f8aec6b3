#!/usr/bin/env bash
# Apache Kafka 4.2.0 and confluent-kafka 2.16.1
#
# Guess: with `acks=all`, a topic with `min.insync.replicas=2` refuses a record that only one broker has
#   (NOT_ENOUGH_REPLICAS). A topic that was made with one replica by mistake is noticed by the first record.
# What happens: the broker never asks for more in-sync replicas than the topic has replicas. With one replica, it
#   confirms each record when it has written it alone.
# Who is hurt: clusters whose `min.insync.replicas=2` is a safety net for topics that applications or auto-creation
#   make with replication factor 1: nothing refuses them, and confirmed records are lost with one disk.
# Instead: check the replication factor itself, when the topic is made and in monitoring.
# Source: Partition.effectiveMinIsr in kafka/cluster/Partition.scala
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

expected='replicas: 1, min.insync.replicas: 2, acks=all: confirmed'

seen=$("$folder/venv/bin/python" -W ignore - "$port" 2>"$folder/clients" <<'END'
import sys
import time

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

BROKER = {"bootstrap.servers": f"127.0.0.1:{sys.argv[1]}"}
admin = AdminClient(BROKER)

topic = NewTopic("orders", 1, 1, config={"min.insync.replicas": "2"})
admin.create_topics([topic])["orders"].result(30)
outcomes = []
producer = Producer({**BROKER, "acks": "all", "message.timeout.ms": 5000})
producer.produce("orders", value=b"paid", on_delivery=lambda error, _: outcomes.append(error))
producer.flush(10)
replicas = len(admin.list_topics("orders").topics["orders"].partitions[0].replicas)
print(
    f"replicas: {replicas}, min.insync.replicas: 2, acks=all: "
    f"{'confirmed' if outcomes == [None] else outcomes}"
)
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: Kafka 4.2.0 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
