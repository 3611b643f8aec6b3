"""The programs of Kafka for the tests: how they are found or downloaded, and what stands in for them."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.support import servers
from tests.support.jars import ELASTICMQ, KAFKA
from tests.support.kafka.mock import MockCluster
from tests.support.kafka.shared import KEEPER, is_real, start_keeper
from tests.support.kafka.tools import find_offsets
from tests.support.project_files import ROOT, read_yaml

JAVA = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
OLD_JAVA = "echo 'java version \"1.8.0_402\"' >&2"
MAVEN = """
for argument in "$@"; do
    case $argument in -DoutputDirectory=*) mkdir "${argument#*=}" && touch "${argument#*=}/kafka.jar" ;; esac
done
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Give the machine no programs but some with these scripts, and an empty cache."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("mkdir", "touch"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    for program in (KAFKA, ELASTICMQ):
        monkeypatch.setattr(program, "folder", tmp_path / "cache" / program.name)

    def add(**programs: str) -> None:
        for name, script in programs.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    return add


def test_maven_fills_the_cache_once(install: Install):
    install(java=JAVA, mvn=MAVEN)
    assert not KAFKA.is_usable
    assert not KAFKA.fill()
    assert [path.name for path in KAFKA.folder.iterdir()] == ["kafka.jar"]
    assert KAFKA.is_usable
    install(mvn="exit 1")
    assert not KAFKA.fill()


@pytest.mark.parametrize(
    ("programs", "reason"),
    [
        ({}, "Java 17 or newer is not installed"),
        ({"java": OLD_JAVA, "mvn": MAVEN}, "Java 17 or newer is not installed"),
        ({"java": JAVA}, "Maven is not installed"),
        ({"java": JAVA, "mvn": f"{MAVEN}\nexit 1"}, "Maven cannot download Kafka"),
    ],
    ids=["nothing", "old Java", "no Maven", "no registry"],
)
def test_one_line_states_why_the_mock_stands_in(
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    programs: dict[str, str],
    reason: str,
):
    install(**programs)
    monkeypatch.setattr(servers, "SERVERS", ())
    for variable in (servers.KAFKA_VARIABLE, servers.MYSQL_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    assert servers.find_all() == {}
    lines = [line for line in capsys.readouterr().out.splitlines() if "Kafka" in line]
    assert lines == [f"Kafka: the mock cluster of librdkafka stands in, because {reason}"]
    assert not KAFKA.is_usable


def test_the_mock_stands_in_if_the_variable_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(servers, "SERVERS", ())
    monkeypatch.delenv(servers.MYSQL_VARIABLE, raising=False)
    monkeypatch.delenv(KEEPER, raising=False)
    monkeypatch.setenv(servers.KAFKA_VARIABLE, "mock")
    assert servers.find_all() == {}
    assert "mock cluster of librdkafka stands in, because KAFKA_URL is mock" in capsys.readouterr().out
    assert not is_real()
    assert start_keeper() is None


def test_the_end_of_a_topic_is_found_as_soon_as_a_broker_has_heard_of_the_topic():
    cluster = MockCluster(1)
    cluster.set_topic_error("orders", KafkaError.UNKNOWN_TOPIC_OR_PART)
    consumer = Consumer({"bootstrap.servers": cluster.servers, "group.id": "unused", "log_level": 0})
    has_heard = threading.Event()

    def hear() -> None:
        has_heard.set()
        cluster.set_topic_error("orders", 0)

    hearing = threading.Timer(0.5, hear)
    hearing.start()
    try:
        assert find_offsets(consumer, TopicPartition("orders", 0)) == (0, 0)
        assert has_heard.is_set()
    finally:
        hearing.cancel()
        consumer.close()
        cluster.close()


def test_the_version_is_the_same_everywhere():
    service = read_yaml(".github/workflows/ci.yml")["jobs"]["everything"]["services"]["kafka"]
    assert service["image"] == f"apache/kafka:{KAFKA.version}"
    assert f"~/.cache/django-outbox/{KAFKA.folder.name}`" in (ROOT / "docs" / "contributing" / "servers.md").read_text()
    major_and_minor = ".".join(KAFKA.version.split(".")[:2])
    assert f"Apache Kafka {major_and_minor}" in (ROOT / "docs" / "how-to" / "kafka.md").read_text()
