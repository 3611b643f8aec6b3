"""The network beneath httpcore: a request has one time limit, and may reach only public addresses.

A URL must not reach the network of the relay (SSRF). Names are resolved first, and the resolved address is checked and
connected to, so that neither a name that resolves differently the second time (DNS rebinding) nor a spelling such as
`0x7f.1` or `2130706433` gets around the check.
"""

import ipaddress
import socket
import ssl
import time
from collections.abc import Iterable
from typing import Any, TypeAlias

import httpcore

from django_outbox.brokers.options import CONNECT_TIMEOUT

PIECE = 65_536
"""Maximum number of bytes that are written at once."""

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Prefix of IPv6 addresses that contain an IPv4 address: https://www.rfc-editor.org/rfc/rfc6052#section-2.1."""

_NOT_PUBLIC = (
    # Protocol assignments. Older versions of Python know only some of them; one was a metadata service.
    ipaddress.IPv4Network("192.0.0.0/24"),
    # Relays from IPv4 to 6to4: https://www.rfc-editor.org/rfc/rfc7526.
    ipaddress.IPv4Network("192.88.99.0/24"),
    # Azure's host, which has services for the virtual machine.
    ipaddress.IPv4Network("168.63.129.16/32"),
)
"""Networks that `ipaddress` takes to be global."""

_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""The third 32 bits of an IPv6 address that leads to an IPv4 address: https://www.rfc-editor.org/rfc/rfc5214#section-6.1."""


class AddressRefused(Exception):
    """A host has no public address."""


def resolve(host: str, port: int, *, allow_private: bool) -> list[str]:
    """Return the IP addresses of a host that may be connected to; raise AddressRefused if there is none."""
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    permitted = [address for address in found if allow_private or is_public(address)]
    if not permitted:
        raise AddressRefused("its address is private, loopback, link-local or reserved")
    return permitted


def is_public(address: str) -> bool:
    """Return whether an IP address, and each IPv4 address inside it, belongs to a host of the internet."""
    # A zone, as in fe80::1%eth0, exists only for addresses that are not public.
    ip: Address = ipaddress.ip_address(address.partition("%")[0])
    inner = _embedded(ip)
    if inner is not None:
        return is_public(str(inner))
    if any(ip in network for network in _NOT_PUBLIC) or (ip.version == 6 and int(ip) >> 32 & 0xFFFF_FFFF in _ISATAP):
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or getattr(ip, "is_site_local", False))


def _embedded(ip: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address to which a packet for an IPv6 address is sent in the end, if there is one."""
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)


class Deadline:
    """The end of the request that a connection sends.

    httpcore's timeouts apply to each read, so that a server that sends a byte now and then would never time out.
    """

    at = 0.0
    connected = False

    def start(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds
        self.connected = False

    def left(self, error: type[Exception]) -> float:
        seconds = self.at - time.monotonic()
        if seconds <= 0:
            raise error("the request took too long")
        return seconds


class Network(httpcore.NetworkBackend):
    def __init__(self, deadline: Deadline, *, allow_private: bool) -> None:
        self._deadline = deadline
        self._allow_private = allow_private
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        self._deadline.connected = True
        addresses = resolve(host, port, allow_private=self._allow_private)
        for number, address in enumerate(addresses, 1):
            seconds = min(CONNECT_TIMEOUT, self._deadline.left(httpcore.ConnectTimeout))
            try:
                stream = self._backend.connect_tcp(address, port, seconds, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if number == len(addresses):
                    raise
            else:
                return DeadlineStream(stream, self._deadline)
        raise AssertionError("a host has at least one address")


class DeadlineStream(httpcore.NetworkStream):
    """A connection on which each operation ends with the request."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # Piece by piece, because its time limit restarts whenever the server has taken some bytes.
        for start in range(0, len(buffer), PIECE):
            self._stream.write(buffer[start : start + PIECE], self._deadline.left(httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def __del__(self) -> None:
        # A publisher need not be closed before it is forgotten.
        self.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        seconds = self._deadline.left(httpcore.ConnectTimeout)
        return DeadlineStream(self._stream.start_tls(ssl_context, server_hostname, seconds), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
