"""Addresses that a webhook may be sent to: a URL must not reach the network of the relay (SSRF).

Names are resolved first, and the resolved address is checked and connected to, so that neither a name that resolves
differently the second time (DNS rebinding) nor a spelling such as `0x7f.1` or `2130706433` gets around the check.
"""

import ipaddress
import socket
from typing import TypeAlias

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
    """Return the IP addresses of a host that may be connected to, in the resolver's order.

    Args:
        host: a name or an address.
        port: the port to connect to.
        allow_private: whether addresses that are not public may be connected to.

    Raises:
        AddressRefused: it has addresses, but no public one.
        OSError: it cannot be resolved.
    """
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
