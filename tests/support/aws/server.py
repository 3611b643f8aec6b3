"""A server that stands for AWS in the tests: moto, which implements the APIs of SQS and SNS in memory.

It runs in its own process on a free port of this machine, and is ended with the tests. To test with another
implementation, such as LocalStack, or with AWS itself, set `AWS_ENDPOINT_URL`. moto neither throttles nor fails
entries; `tests.support.aws.answers` gives such answers.
"""

import atexit
import functools
import os
import subprocess
import sys
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import boto3
from botocore.config import Config

from tests.support.ports import free_port
from tests.support.waiting import eventually

REGION = "eu-central-1"

CREDENTIALS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}


@functools.cache
def endpoint_url() -> str:
    """Return the URL of the server, and start it if there is none yet."""
    return os.environ.get("AWS_ENDPOINT_URL") or _start_moto()


def address() -> tuple[str, int]:
    """Return the host and the port of the server."""
    parts = urlsplit(endpoint_url())
    return parts.hostname or "127.0.0.1", parts.port or 80


@functools.cache
def client(service: str, connections: int = 10) -> Any:
    """Return the tests' own client of a service, which keeps that many connections."""
    session = boto3.session.Session(region_name=REGION, **CREDENTIALS)
    config = Config(retries={"total_max_attempts": 1}, max_pool_connections=connections)
    return session.client(service, endpoint_url=endpoint_url(), config=config)


def _start_moto() -> str:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def end() -> None:
        process.kill()
        process.wait()

    atexit.register(end)

    def responds() -> bool:
        assert process.poll() is None, "moto's server has ended"
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/moto-api/data.json", timeout=5):
            return True
        return False

    eventually(responds, "moto's server responds", seconds=60)
    return f"http://127.0.0.1:{port}"
