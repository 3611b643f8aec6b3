#!/usr/bin/env bash
# @platformatic/kafka 2.12.1 (Node), and Java's producer of Apache Kafka 4.2.0
#
# Guess: its default partitioner is Java's (murmur2 of the key), so records with one key are in one partition, whether
#   a Node or a Java service writes them. A trial with 4 partitions confirms it.
# What happens: it takes the hash as an unsigned number, where Java clears the sign. The remainders agree if the
#   number of partitions is a power of 2. With 3, 6 or 12 partitions, half of the keys are in another partition than
#   Java's.
# Who is hurt: services that write to a topic of others, or that are ported to this client: records of one key in two
#   partitions have no order, and joins by partition find nothing.
# Instead: pass `partitioner: compatibilityPartitioner`, which the package exports.
# Source: dist/clients/producer/partitioners.js in the package
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" @platformatic/kafka@2.12.1
for artifact in org.apache.kafka:kafka-clients:4.2.0 org.slf4j:slf4j-api:1.7.36 org.slf4j:slf4j-nop:1.7.36; do
    mvn --quiet --batch-mode org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
        -Dartifact="$artifact" -DoutputDirectory="$folder/jars" >"$folder/log"
done

cat >"$folder/Partitions.java" <<'END'
import java.nio.charset.StandardCharsets;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

class Partitions {
    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        for (int i = 1; i < arguments.length; i++) {
            String key = arguments[i];
            System.out.print(BuiltInPartitioner.partitionForKey(key.getBytes(StandardCharsets.UTF_8), count) + " ");
        }
    }
}
END

cat >"$folder/partitions.mjs" <<'END'
import { compatibilityPartitioner, defaultPartitioner } from "@platformatic/kafka";

// The producer divides what its partitioner returns by the number of partitions, and takes the remainder.
const [choice, count, ...keys] = process.argv.slice(2);
const partitioner = choice === "default" ? defaultPartitioner : compatibilityPartitioner;
console.log(keys.map((key) => partitioner({}, Buffer.from(key)) % count).join(" "));
END

expected='4 partitions
  Java:                           2 3 3 2 2 1 1 1
  Node:                           2 3 3 2 2 1 1 1
3 partitions
  Java:                           1 0 0 2 2 0 1 2
  Node:                           1 2 2 2 2 2 1 1
  Node, compatibilityPartitioner: 1 0 0 2 2 0 1 2'

java=(java -cp "$folder/jars/*" "$folder/Partitions.java")
node=(node "$folder/partitions.mjs")
keys=(order-1 order-2 order-3 order-4 order-5 order-6 order-7 order-8)
seen="4 partitions
  Java:                           $("${java[@]}" 4 "${keys[@]}" | xargs)
  Node:                           $("${node[@]}" default 4 "${keys[@]}")
3 partitions
  Java:                           $("${java[@]}" 3 "${keys[@]}" | xargs)
  Node:                           $("${node[@]}" default 3 "${keys[@]}")
  Node, compatibilityPartitioner: $("${node[@]}" compatible 3 "${keys[@]}")"
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: @platformatic/kafka 2.12.1 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
