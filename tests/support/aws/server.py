"""Servers that stand for AWS in the tests: moto has SQS and SNS, and ElasticMQ has SQS by other authors.

Each runs in its own process on a free port of this machine, and is ended with the tests. To test with another
implementation, such as LocalStack, or with AWS itself, set `AWS_ENDPOINT_URL`. None of them throttles or checks a
signature; `tests.support.aws.answers` gives such answers.
"""

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import boto3
from botocore.config import Config

from tests.support.jars import ELASTICMQ
from tests.support.ports import free_port
from tests.support.waiting import eventually

REGION = "eu-central-1"

CREDENTIALS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}


@functools.cache
def endpoint_url() -> str:
    """Return the URL of the server, and start it if there is none yet."""
    return os.environ.get("AWS_ENDPOINT_URL") or _start_moto()


def address(url: str = "") -> tuple[str, int]:
    parts = urlsplit(url or endpoint_url())
    return parts.hostname or "127.0.0.1", parts.port or 80


@functools.cache
def client(service: str, url: str = "") -> Any:
    """Return the tests' own client of a service."""
    session = boto3.session.Session(region_name=REGION, **CREDENTIALS)
    config = Config(retries={"total_max_attempts": 1})
    return session.client(service, endpoint_url=url or endpoint_url(), config=config)


def _start_moto() -> str:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    return _start("moto's server", command, f"http://127.0.0.1:{port}", "/moto-api/data.json")


ELASTICMQ_SETTINGS = """
node-address.port = {port}
rest-sqs {{ bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats.enabled = false
aws.region = {region}
"""


@functools.cache
def elasticmq_url() -> str:
    """Return the URL of ElasticMQ, and start it if that was not done yet."""
    port = free_port()
    folder = tempfile.TemporaryDirectory(prefix="outbox-elasticmq-")
    atexit.register(folder.cleanup)
    file = Path(folder.name) / "elasticmq.conf"
    file.write_text(ELASTICMQ_SETTINGS.format(port=port, region=REGION))
    command = ELASTICMQ.command("org.elasticmq.server.Main", options=("-Xmx128m", f"-Dconfig.file={file}"))
    return _start("ElasticMQ", command, f"http://127.0.0.1:{port}", "/health")


def _start(name: str, command: Sequence[str | Path], url: str, path: str) -> str:
    """Start a server, which is ended with this process, and wait until it responds."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end() -> None:
        process.kill()
        process.wait()

    atexit.register(end)

    def responds() -> bool:
        assert process.poll() is None, f"{name} has ended"
        with suppress(OSError), urlopen(f"{url}{path}", timeout=5):
            return True
        return False

    eventually(responds, f"{name} responds", seconds=60)
    return url
