"""Faults of Redis: it refuses to write, or closes connections."""

import random

from tests.faults.brokers.redis import Redis
from tests.faults.kinds import everyone, fault
from tests.faults.stage import Stage
from tests.support.ports import free_port


@fault("broker", brokers=("redis",))
def clients_killed(stage: Stage, rand: random.Random) -> int:
    """`CLIENT KILL TYPE normal`: all connections end."""
    with server(stage).connect() as client:
        client.execute_command("CLIENT KILL TYPE normal SKIPME yes")
    return everyone(stage)


@fault("broker", brokers=("redis",))
def out_of_memory(stage: Stage, rand: random.Random) -> int:
    """Redis reaches `maxmemory`, and refuses each XADD with OOM."""
    with stage.refusals.expected(), server(stage).connect() as client:
        client.config_set("maxmemory", 1)
        try:
            stage.pause(rand.uniform(1, 4))
        finally:
            client.config_set("maxmemory", 0)
    return everyone(stage)


@fault("broker", brokers=("redis",))
def read_only_replica(stage: Stage, rand: random.Random) -> int:
    """The server becomes a replica, as after a failover, and refuses each XADD with READONLY."""
    with server(stage).connect() as client:
        client.replicaof("127.0.0.1", free_port())
        try:
            stage.pause(rand.uniform(1, 4))
        finally:
            client.replicaof("NO", "ONE")
    return everyone(stage)


def server(stage: Stage) -> Redis:
    """Return the broker, which is Redis."""
    assert isinstance(stage.broker, Redis)
    return stage.broker
