"""The options of the Redis publisher: what is wrong is named with its remedy, and no password is shown."""

from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.redis import RedisStreamsPublisher
from django_outbox.messages import ACCEPTED
from tests.support.certificates import make_certificate
from tests.support.claimed import make_message
from tests.support.ports import free_port
from tests.support.redis.server import RedisServer

URL = "redis://shop:s3cret@localhost:6379/2"

INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "no url": ({"url": ""}, "url is missing"),
    "scheme": ({"url": "http://shop:s3cret@localhost"}, "redis:// or rediss://"),
    "port": ({"url": "redis://shop:s3cret@localhost:x"}, "url: a URL cannot be read"),
    "not encoded": ({"url": "redis://shop:s3cret/x@localhost"}, "percent-encoded"),
    "no host": ({"url": "redis://:s3cret@/0"}, "url: a URL cannot be read"),
    "database": ({"url": "redis://:s3cret@localhost/x"}, "database that is not a number"),
    "query": ({"url": f"{URL}?protocol=3"}, "url has parameters"),
    "several": ({"url": [URL, URL]}, "url must be a URL like"),
    "sentinel port": ({"sentinels": "redis://localhost"}, "without a port"),
    "max_length": ({"max_length": 0}, "max_length is 0"),
    "timeout": ({"timeout": 0}, "timeout is 0"),
    "ssl without TLS": ({"ssl": {}}, "must begin with rediss://"),
}


@pytest.mark.parametrize(("options", "text"), INVALID.values(), ids=INVALID.keys())
def test_an_invalid_option_is_named_with_its_remedy(options, text):
    with pytest.raises(ImproperlyConfigured) as raised:
        RedisStreamsPublisher("shop", **{"url": URL, **options})
    assert text in str(raised.value)
    assert "s3cret" not in str(raised.value)


DESCRIBED: dict[str, tuple[dict[str, Any], str]] = {
    "server": ({"url": URL}, "Redis at redis://localhost:6379 database 2, stream '{topic}'"),
    "sentinels": (
        {"url": "redis://:s3cret@mymaster", "sentinels": ["redis://:s3cret@a", "redis://:s3cret@b:1"], "stream": "s"},
        "Redis at master 'mymaster' of the Sentinels at a:26379, b:1, stream 's'",
    ),
}


@pytest.mark.parametrize(("options", "text"), DESCRIBED.values(), ids=DESCRIBED.keys())
def test_it_is_described_without_a_password(options, text):
    assert RedisStreamsPublisher("shop", **options).describe() == text


def test_tls_verifies_the_server(tmp_path: Path):
    make_certificate(tmp_path, "redis", "DNS:localhost")
    key, certificate = tmp_path / "redis.key", tmp_path / "redis.pem"
    port = free_port()
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-auth-clients", "no")
    with RedisServer(tmp_path, "--tls-port", str(port), *files):
        url = f"rediss://localhost:{port}"
        publisher = RedisStreamsPublisher("shop", url=url, ssl={"cafile": str(certificate)})
        assert publisher.publish([make_message("s", b"1" * 100_000)] * 100) == [ACCEPTED] * 100
        publisher.close()
        reason = RedisStreamsPublisher("shop", url=url).prepare()
        assert "check cafile in the option ssl" in reason
        other = RedisStreamsPublisher("shop", url=f"rediss://127.0.0.1:{port}", ssl={"cafile": str(certificate)})
        assert "IP address mismatch" in other.prepare()
        assert RedisStreamsPublisher("shop", url=f"redis://localhost:{port}").prepare()
