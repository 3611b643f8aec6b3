"""A worker of Kafka Connect with Debezium's connector for PostgreSQL."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from tests.support.children import Child, Nursery, wait_for_answer, wait_until
from tests.support.jars import DEBEZIUM
from tests.support.ports import free_port

PATIENCE = 120
"""Seconds that a worker or a connector may take to start or stop."""

JAVA_OPTIONS = ("-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")

TOPICS = ("config", "offset", "status")
"""What the worker keeps in Kafka, with a topic each."""

JSON = "org.apache.kafka.connect.json.JsonConverter"


class Worker:
    """A worker, which can be killed and started again.

    Args:
        servers: the addresses of the brokers.
        environment: further variables of its environment, from which connectors read secrets.
        settings: in addition to the least that it needs.
    """

    process: Child

    def __init__(
        self, nursery: Nursery, servers: str, environment: Mapping[str, str], settings: Mapping[str, object]
    ) -> None:
        self._nursery = nursery
        self._environment = {**os.environ, **environment}
        self._url = f"http://127.0.0.1:{free_port()}"
        self._file = nursery.directory / "connect.properties"
        found = {
            "bootstrap.servers": servers,
            "group.id": "connect",
            "listeners": self._url,
            "key.converter": JSON,
            "value.converter": JSON,
            "config.providers": "env",
            "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
            "plugin.discovery": "service_load",
            **{f"{topic}.storage.topic": f"connect-{topic}" for topic in TOPICS},
            **{f"{topic}.storage.replication.factor": 1 for topic in TOPICS},
            "offset.storage.partitions": 1,
            "status.storage.partitions": 1,
            **settings,
        }
        self._file.write_text("".join(f"{name}={value}\n" for name, value in found.items()))

    def start(self) -> None:
        command = DEBEZIUM.command("org.apache.kafka.connect.cli.ConnectDistributed", self._file, options=JAVA_OPTIONS)
        self.process = self._nursery.start("connect", command, environment=self._environment)
        wait_for_answer(self.process, lambda: self.call("GET", "/connectors"), PATIENCE)

    def create(self, connector: Mapping[str, Any]) -> None:
        """Create a connector, and wait until it runs."""
        self.call("POST", "/connectors", connector)
        self.wait(connector["name"], "RUNNING")

    def stop(self, name: str) -> None:
        """Stop a connector, and wait until it has stored its offsets."""
        self.call("PUT", f"/connectors/{name}/stop")
        self.wait(name, "STOPPED")

    def remove(self, name: str) -> None:
        """Remove a connector, with its offsets."""
        self.stop(name)
        self.call("DELETE", f"/connectors/{name}/offsets")
        self.call("DELETE", f"/connectors/{name}")

    def wait(self, name: str, state: str) -> None:
        """Wait until a connector and its task have a state; one that has stopped has no task."""
        wait_until(lambda: set(self.states(name)) == {state}, PATIENCE, f"connector {name} {state}")

    def states(self, name: str) -> list[str]:
        status = self.call("GET", f"/connectors/{name}/status")
        tasks = [] if status["connector"]["state"] == "STOPPED" else status["tasks"] or [{"state": "UNASSIGNED"}]
        return [each["state"] for each in (status["connector"], *tasks)]

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call its REST API, and return the response."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()}") from error
        return json.loads(text) if text else None
