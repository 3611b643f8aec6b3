"""Clusters of Kafka brokers in this process: the mock that comes with librdkafka, which speaks the protocol.

It keeps the last 5 MB of each partition, and does not check the sequence numbers of idempotent producers. Its functions
are described in https://github.com/confluentinc/librdkafka/blob/master/src/rdkafka_mock.h.
"""

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, INIT_PRODUCER_ID = 0, 1, 2, 3, 8, 22
"""Kinds of requests: https://kafka.apache.org/protocol.html#protocol_api_keys."""

_PRODUCER = 0

MOCKS: "dict[str, MockCluster]" = {}
"""The clusters of this process by their addresses."""


class MockCluster:
    """The brokers of a cluster, whose ids begin with 1."""

    def __init__(self, count: int = 3) -> None:
        self._ids = range(1, count + 1)
        self._library = _load_library()
        text = ctypes.create_string_buffer(512)
        configuration = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        self._library.rd_kafka_conf_set(configuration, b"log_level", b"0", text, len(text))
        # A client is needed that the brokers belong to. It connects to nothing.
        self._owner = self._library.rd_kafka_new(_PRODUCER, configuration, text, ctypes.c_size_t(len(text)))
        assert self._owner, text.value
        self._cluster = ctypes.c_void_p(
            self._library.rd_kafka_mock_cluster_new(ctypes.c_void_p(self._owner), len(self._ids))
        )
        self.servers: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        MOCKS[self.servers] = self

    def close(self) -> None:
        del MOCKS[self.servers]
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(ctypes.c_void_p(self._owner))

    def advertise(self, broker: int, port: int) -> None:
        """Let clients connect to a broker by another port of this machine."""
        self._library.rd_kafka_mock_broker_set_host_port(self._cluster, broker, b"127.0.0.1", port)

    def create_topic(self, name: str, partitions: int = 4) -> None:
        """Create a topic; otherwise its first use does, with four partitions."""
        self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, len(self._ids))

    def set_topic_error(self, name: str, code: int) -> None:
        """Answer with this error when a client asks for the topic; 0 ends it."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, name.encode(), code)

    def go_down(self, *brokers: int) -> None:
        """End all connections of these brokers, by default of all, and accept no new ones."""
        for broker in brokers or self._ids:
            self._library.rd_kafka_mock_broker_set_down(self._cluster, broker)

    def come_back(self, *brokers: int) -> None:
        for broker in brokers or self._ids:
            self._library.rd_kafka_mock_broker_set_up(self._cluster, broker)

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, broker)

    def fail(self, request: int, *codes: int) -> None:
        """Answer the next requests of this kind with these errors."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(request), ctypes.c_size_t(len(codes)), array
        )

    def stop_failing(self) -> None:
        for request in (PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, INIT_PRODUCER_ID):
            self._library.rd_kafka_mock_clear_request_errors(self._cluster, ctypes.c_int16(request))

    def fail_partition(self, topic: str, partition: int, request: int, *codes: int) -> None:
        """Answer the next requests of this kind for a partition with these errors."""
        self._library.rd_kafka_mock_partition_push_request_errors(
            self._cluster,
            topic.encode(),
            ctypes.c_int32(partition),
            ctypes.c_int16(request),
            ctypes.c_size_t(len(codes)),
            *map(ctypes.c_int, codes),
        )

    @contextmanager
    def down(self, *brokers: int) -> Iterator[None]:
        self.go_down(*brokers)
        try:
            yield
        finally:
            self.come_back(*brokers)


@functools.cache
def mock_cluster() -> MockCluster:
    """Return the cluster of three brokers that the tests of this process share."""
    return MockCluster()


def _load_library() -> ctypes.CDLL:
    """Return the librdkafka that the client uses."""
    folder = Path(confluent_kafka.__file__).parent
    # Wheels have it in a folder next to the package, or (macOS) in it.
    for pattern in ("../confluent_kafka.libs/librdkafka*", ".dylibs/librdkafka*"):
        for path in sorted(folder.glob(pattern)):
            library = ctypes.CDLL(str(path))
            for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
                getattr(library, name).restype = ctypes.c_void_p
            library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
            return library
    raise FileNotFoundError("The wheel of confluent-kafka has no librdkafka.")
