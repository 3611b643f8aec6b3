"""The side of walbox in the benchmark `living`; it runs where that package is installed.

Its first line of input has the options, the second ends it; then it writes the times of the confirms.
"""

import asyncio
import json
import resource
import sys
import time
from typing import Any

import pika
from walbox import Walbox, WalboxOptions  # type: ignore[import-not-found]

SETTLING_TIME = 1.0
"""Seconds after which it reads the log."""


async def main(*, dsn: str, name: str, url: str, exchange: str) -> None:
    confirmed: dict[str, float] = {}
    parameters = pika.URLParameters(url)
    # Nothing serves this connection while no message comes.
    parameters.heartbeat = 0
    channel = pika.BlockingConnection(parameters).channel()
    channel.confirm_delivery()

    async def handle(transaction: Any, checkpoint: Any) -> None:
        for change in transaction.changes:
            if change.kind == "insert":
                row = change.new
                id = str(row["message_id"])
                properties = pika.BasicProperties("application/json", delivery_mode=2, message_id=id, type=row["type"])
                body = row["payload"] if isinstance(row["payload"], str) else json.dumps(row["payload"])
                channel.basic_publish(exchange, row["topic"], body.encode(), properties, mandatory=True)
                confirmed[id] = time.time()
        await checkpoint.save(transaction.commit_lsn)

    client = Walbox.build(WalboxOptions(consumer_name=name, dsn=dsn, slot_name=name, publication_name=name))
    running = asyncio.create_task(client.run(handle))
    await asyncio.sleep(SETTLING_TIME)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    running.cancel()
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps({"confirmed": confirmed, "megabytes": megabytes}))
    sys.stdout.flush()


asyncio.run(main(**json.loads(sys.stdin.readline())))
