#!/usr/bin/env bash
# Apache Kafka 4.2.0, a new cluster of two brokers, and confluent-kafka 2.16.1
#
# Guess: `min.insync.replicas=2`, added to the `server.properties` of every broker, holds after a restart for all topics
#   without a value of their own, as in Kafka 3.
# What happens: since 4.1 a new cluster tracks eligible leader replicas. It then stores the value that it was formatted
#   with, 1 if the file said nothing, as a setting of the whole cluster, which takes precedence over the file for good.
#   After the restart it is still 1, for new topics too, and one replica confirms `acks=all`.
# Who is hurt: clusters that are made safer by their file, or whose file is kept by configuration management: confirmed
#   records are lost with one disk, although the file that everybody reads forbids it.
# Instead: kafka-configs.sh --alter --entity-type brokers --entity-default --add-config min.insync.replicas=2, or a
#   value for each topic.
# Source: https://kafka.apache.org/42/operations/eligible-leader-replicas, which does not name the file
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

expected='formatted without a value: 1
2 in the file of both brokers, restarted: 1, for a new topic: 1
one of two replicas stopped, acks=all: confirmed
2 by kafka-configs: 2'

seen=$("$folder/venv/bin/python" -W ignore - "$folder" 2>"$folder/clients" <<'END'
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

FOLDER = Path(sys.argv[1])
JAVA = ["java", "-Xmx256m", "-cp", f"{FOLDER}/jars/*"]
listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
first, second, controller = (each.getsockname()[1] for each in listeners)
for each in listeners:
    each.close()
CLIENT = {"bootstrap.servers": f"127.0.0.1:{first}"}


def configure(more=""):
    for node, port, roles, inside in (
        (1, first, "broker,controller", f",CONTROLLER://127.0.0.1:{controller}"),
        (2, second, "broker", ""),
    ):
        (FOLDER / f"{node}.properties").write_text(f"""
process.roles={roles}
node.id={node}
listeners=PLAINTEXT://127.0.0.1:{port}{inside}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={FOLDER}/{node}
offsets.topic.replication.factor=1
broker.session.timeout.ms=4000
{more}
""")


def start():
    return [
        subprocess.Popen([*JAVA, "kafka.Kafka", f"{FOLDER}/{node}.properties"], stdout=subprocess.DEVNULL)
        for node in (1, 2)
    ]


def wait_for(is_true):
    for _ in range(60):
        with suppress(KafkaException):
            if is_true():
                return
        time.sleep(1)
    raise TimeoutError


def minimum(topic):
    found = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)])
    return next(iter(found.values())).result()["min.insync.replicas"].value


def create(topic):
    admin.create_topics([NewTopic(topic, 1, 2)])[topic].result(30)
    wait_for(lambda: topic in admin.list_topics(timeout=5).topics)
    time.sleep(1)


configure()
for node in (1, 2):
    properties = f"{FOLDER}/{node}.properties"
    command = [*JAVA, "kafka.tools.StorageTool", "format", "--cluster-id", "4L6g3nShT-eMCtK--X86sw"]
    subprocess.run([*command, "--config", properties], check=True, stdout=subprocess.DEVNULL)
servers = start()
try:
    admin = AdminClient(CLIENT)
    wait_for(lambda: len(admin.list_topics(timeout=5).brokers) == 2)
    create("orders")
    print("formatted without a value:", minimum("orders"))
    for server in reversed(servers):
        server.terminate()
        server.wait()
    configure("min.insync.replicas=2")
    servers = start()
    wait_for(lambda: len(admin.list_topics(timeout=5).brokers) == 2)
    create("refunds")
    print(f"2 in the file of both brokers, restarted: {minimum('orders')}, for a new topic: {minimum('refunds')}")
    servers[1].kill()
    wait_for(lambda: admin.list_topics("orders", timeout=5).topics["orders"].partitions[0].isrs == [1])
    outcomes = []
    producer = Producer({**CLIENT, "acks": "all", "message.timeout.ms": 10000})
    producer.produce("orders", value=b"paid", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(15)
    print("one of two replicas stopped, acks=all:", "confirmed" if outcomes == [None] else outcomes)
    command = [*JAVA, "kafka.admin.ConfigCommand", "--bootstrap-server", CLIENT["bootstrap.servers"], "--alter"]
    command += ["--entity-type", "brokers", "--entity-default", "--add-config", "min.insync.replicas=2"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wait_for(lambda: minimum("orders") == "2")
    print("2 by kafka-configs:", minimum("orders"))
finally:
    for server in servers:
        server.kill()
        server.wait()
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: Kafka 4.2.0 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
