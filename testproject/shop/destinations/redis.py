"""Streams of Redis, one for each type: the billing service reads the one of the orders."""

import json
import uuid
from typing import Any

import redis

from shop import conf
from shop.destinations import REPORTS, Destination

REPORT = f"{conf.EXCHANGE}.report.requested"
REFUND = f"{conf.EXCHANGE}.refund.requested"


class RedisDestination(Destination):
    """The streams whose names begin with the name of the shop.

    Redis creates the streams. Those of reports and refunds are unusable at first, because their keys have other values.
    """

    repair_text = f"delete the key that is in the way of the stream of {REPORTS}"

    def __init__(self) -> None:
        self._client: Any = redis.Redis.from_url(conf.BROKER_URL)
        self.name = f"Redis, streams {conf.EXCHANGE}.*"

    def prepare(self) -> None:
        for stream in (REPORT, REFUND):
            self._client.set(stream, "not a stream")

    def repair(self) -> None:
        self._client.delete(REPORT)

    def read_arrivals(self) -> list[tuple[uuid.UUID, Any]]:
        streams = sorted(self._client.scan_iter(f"{conf.EXCHANGE}.*", _type="stream"))
        return [
            (uuid.UUID(fields[b"id"].decode()), json.loads(fields[b"payload"]))
            for stream in streams
            for _, fields in self._client.xrange(stream)
        ]

    def close(self) -> None:
        self._client.close()
