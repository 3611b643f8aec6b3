"""Helpers for tests with Redis: the server of the test run, and servers that a test starts."""

from urllib.parse import urlsplit, urlunsplit

from django.conf import settings


def server_url(*, port: int | None = None, password: str = "") -> str:
    """Return the URL of the server of the test run with changes; a port is that of a proxy on this machine."""
    parts = urlsplit(str(settings.REDIS_URL))
    address = parts.netloc.rpartition("@")[2] if port is None else f"127.0.0.1:{port}"
    return urlunsplit(("redis", f"default:{password}@{address}" if password else address, parts.path, "", ""))
