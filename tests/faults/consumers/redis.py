"""A consumer that reads streams of Redis in a consumer group."""

import time
from typing import Any

import redis

from tests.faults.brokers.redis import ALL_STREAMS, DEAD, GROUP
from tests.faults.consumers.journals import ACK_PAUSE, Journals, consume

NAME = "consumer"
"""Its name in the group: the next process has the same one, and so what this one has not acknowledged."""

COUNT = 500


def read(url: str, journals: Journals) -> None:
    """Note entries, first those that were not acknowledged, and acknowledge them now and then."""
    with redis.Redis.from_url(url, socket_timeout=10, decode_responses=True) as client:
        acknowledged, noted = 0.0, Noted(client)
        while noted.take(journals, dict.fromkeys(ALL_STREAMS, "0"), again=True):
            journals.flush()
            noted.acknowledge()
        while not journals.stopping:
            noted.take(journals, dict.fromkeys(ALL_STREAMS, ">"), again=False)
            journals.flush()
            if time.monotonic() > acknowledged + ACK_PAUSE:
                noted.acknowledge()
                acknowledged = time.monotonic()
        noted.acknowledge()


class Noted:
    """The entries that were noted and are not acknowledged."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._ids: dict[str, list[str]] = {}

    def take(self, journals: Journals, positions: dict[Any, Any], *, again: bool) -> int:
        count = 0
        answer: Any = self._client.xreadgroup(GROUP, NAME, positions, count=COUNT, block=100)
        for stream, entries in answer or ():
            for id, fields in entries:
                if stream == DEAD:
                    journals.note_dead(fields["id"], again=again)
                else:
                    journals.note(fields["id"], fields.get("key", ""), fields["payload"].encode(), again=again)
                self._ids.setdefault(stream, []).append(id)
                count += 1
        return count

    def acknowledge(self) -> None:
        for stream, ids in self._ids.items():
            self._client.xack(stream, GROUP, *ids)
        self._ids = {}


if __name__ == "__main__":
    consume(read, (redis.RedisError,))
