#!/usr/bin/env bash
# confluent-kafka 2.16.1, AIOProducer
#
# Guess: `buffer_timeout` (1 second by default) is the longest time that a message waits in the producer's buffer, as
#   `linger.ms` is in every Kafka client. A message every half second therefore leaves about a second later.
# What happens: the clock starts again with every `produce()`. As long as messages keep coming more often than the
#   timeout, none is sent until `batch_size` (1,000) of them have gathered: at two a second that takes 8 minutes. A
#   caller that awaits each delivery gets one message every 2 seconds.
# Who is hurt: services with a steady, slow stream, which is what most have. Events arrive minutes late, and all of
#   them are lost if the process is killed, because they never left it.
# Instead: call `await producer.flush()` on a timer, set `batch_size` to 1, or use `Producer` in a thread.
# Source: class BufferTimeoutManager in confluent_kafka/aio/producer/_buffer_timeout_manager.py
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1

expected='12 messages in 6 s: 0 delivered
after 3 s of silence: 12 delivered
one awaited message: more than 1.5 s'

seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'END'
import asyncio
import time

from confluent_kafka.aio import AIOProducer


async def main():
    # The client's own mock of a cluster, so no broker is needed.
    producer = AIOProducer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
    first = await producer.produce("warm-up", value=b"")
    await producer.flush()
    await first
    futures = []
    for _ in range(12):
        futures.append(await producer.produce("orders", value=b"paid"))
        await asyncio.sleep(0.5)
    print(f"12 messages in 6 s: {sum(future.done() for future in futures)} delivered")
    await asyncio.sleep(3)
    print(f"after 3 s of silence: {sum(future.done() for future in futures)} delivered")
    began = time.monotonic()
    await (await producer.produce("orders", value=b"paid"))
    print(f"one awaited message: {'more' if time.monotonic() - began > 1.5 else 'less'} than 1.5 s")
    await producer.close()


asyncio.run(main())
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: confluent-kafka 2.16.1 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
