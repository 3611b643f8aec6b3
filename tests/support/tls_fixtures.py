"""Fixtures for tests of TLS. RabbitMQ has none here: a proxy has it."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import make_certificate
from tests.support.proxies import Proxies, Proxy
from tests.support.rabbitmq.tools import open_proxy


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A certificate for 127.0.0.1 with its key, and one for another host."""
    folder = tmp_path_factory.mktemp("certificates")
    for name, address in (("broker", "IP:127.0.0.1"), ("stranger", "IP:127.0.0.2")):
        make_certificate(folder, name, address)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def tls_proxy(certificates: dict[str, Path]) -> Iterator[Proxy]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates["broker.pem"], certificates["broker.key"])
    with Proxies() as proxies:
        yield open_proxy(proxies, context)
