"""The Kafka that the tests of a run share.

It is the cluster that KAFKA_URL names. Without it, the first test that asks starts one broker, if its program is in the
cache; only one, because an idle broker takes 5 % of a processor. It ends with the run. Otherwise, or if KAFKA_URL is
"mock", each process of the run has a mock of a cluster.
"""

import functools
import os
import threading
from contextlib import ExitStack, suppress
from multiprocessing.connection import Client, Listener

from tests.support.jars import KAFKA, OLDEST_JAVA

URL = "KAFKA_URL"

KEEPER = "OUTBOX_TEST_KAFKA"
"""The environment variable that tells the processes of a run where they ask for the brokers."""

MOCK_REASON = (
    f"the brokers are a mock: unset {URL}, install Java {OLDEST_JAVA} or newer and Maven, and run tests/run.py"
)
"""Why tests are skipped that need brokers of Kafka itself."""


def is_real() -> bool:
    return os.environ.get(URL, "") not in {"", "mock"} or KEEPER in os.environ


@functools.cache
def kafka_servers() -> str:
    """Return the addresses of the brokers, and start one if nobody has."""
    if not is_real():
        from tests.support.kafka.mock import mock_cluster  # noqa: PLC0415 - this module is imported in every run

        return mock_cluster().servers
    if KEEPER not in os.environ:
        return os.environ[URL].removeprefix("kafka://")
    with Client(os.environ[KEEPER], family="AF_UNIX") as connection:
        servers, error = connection.recv()
    assert servers, error
    return str(servers)


class Keeper:
    """Starts a broker for the first process that asks, and ends it with the run.

    It belongs to the process that outlives all others of a run, and they ask at a socket.
    """

    def __init__(self) -> None:
        self._listener = Listener(family="AF_UNIX")
        self._address = str(self._listener.address)
        self._resources = ExitStack()
        self._is_ending = False
        self._thread = threading.Thread(target=self._serve, name="kafka-keeper", daemon=True)
        self._thread.start()
        os.environ[KEEPER] = self._address

    def end(self) -> None:
        del os.environ[KEEPER]
        self._is_ending = True
        with suppress(OSError):
            Client(self._address, family="AF_UNIX").close()
        self._thread.join()
        self._listener.close()
        self._resources.close()

    def _serve(self) -> None:
        answer: tuple[str, str] | None = None
        while True:
            with suppress(OSError), self._listener.accept() as connection:
                if self._is_ending:
                    return
                answer = answer or self._start()
                connection.send(answer)

    def _start(self) -> tuple[str, str]:
        from tests.support.kafka.cluster import running_cluster  # noqa: PLC0415

        try:
            return self._resources.enter_context(running_cluster(count=1)).servers, ""
        except Exception as error:
            return "", f"Kafka cannot be started: {error}"


def start_keeper() -> Keeper | None:
    """Return the keeper of the broker, unless there is one or it cannot be started."""
    return Keeper() if KAFKA.is_usable and not os.environ.get(URL) and KEEPER not in os.environ else None
