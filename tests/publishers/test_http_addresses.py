"""The publisher for HTTP does not reach into private networks."""

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_outbox.brokers.http import network
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.certificates import make_certificate
from tests.support.claimed import make_message
from tests.support.http.receiver import MakePublisher, Receiver

pytest_plugins = ["tests.support.http.fixtures"]

PRIVATE = [
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
    *("255.255.255.255", "::", "::1", "fe80::1", "fe80::1%1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
    *("2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1"),
    *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1"),
    # Azure's host, relays of 6to4, Oracle's earlier metadata service, and ISATAP.
    *("168.63.129.16", "192.88.99.1", "192.0.0.192", "::ffff:168.63.129.16", "64:ff9b::a83f:8110"),
    *("2606:4700::5efe:a00:1", "2606:4700::200:5efe:808:808"),
    "2001:0:4136:e378:8000:63bf:80ff:fffe",  # Teredo, of the client 127.0.0.1
]
PUBLIC = [
    "93.184.215.14",
    "8.8.8.8",
    "168.63.129.17",
    "192.0.1.1",
    "172.32.0.1",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_public_is_refused(address: str):
    assert not network.is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_permitted(address: str):
    assert network.is_public(address)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0", "localhost", "[::1]", "[::ffff:127.0.0.1]"],
)
def test_no_spelling_of_a_private_address_is_connected_to(receiver: Receiver, make_webhooks: MakePublisher, host: str):
    publisher = make_webhooks(receiver.url(host=host), allow_private_addresses=False)
    (outcome,) = publisher.publish([make_message()])
    assert outcome.kind is OutcomeKind.UNANSWERED
    assert "set allow_private_addresses if it is in your own network" in outcome.error
    assert publisher.prepare() == outcome.error
    assert not receiver.calls


Resolve = Callable[[dict[str, list[list[str]]]], list[tuple[str, int]]]


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Let names resolve to one list of addresses after the other; returns the addresses that are connected to."""
    real_resolve, real_connect = socket.getaddrinfo, socket.create_connection

    def install(names: dict[str, list[list[str]]]) -> list[tuple[str, int]]:
        connected: list[tuple[str, int]] = []

        def getaddrinfo(host: str, port: int, *args: Any, **kwargs: Any) -> Any:
            if host not in names:
                return real_resolve(host, port, *args, **kwargs)
            found = names[host].pop(0) if len(names[host]) > 1 else names[host][0]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

        def create_connection(address: tuple[str, int], *args: Any, **kwargs: Any) -> socket.socket:
            connected.append(address)
            return real_connect(address, *args, **kwargs)

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        monkeypatch.setattr(socket, "create_connection", create_connection)
        return connected

    return install


def test_of_several_addresses_the_one_that_was_checked_and_is_public_is_connected_to(
    receiver: Receiver, make_webhooks: MakePublisher, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
):
    # Only this address counts as public; a second look would find another one.
    monkeypatch.setattr(network, "is_public", lambda address: address == "127.0.0.1")
    connected = resolve({"hooks.example.com": [["10.0.0.1", "127.0.0.1"], ["127.0.0.2"]]})
    publisher = make_webhooks(receiver.url(host="hooks.example.com"), allow_private_addresses=False, concurrency=1)
    assert publisher.publish([make_message()]) == [ACCEPTED]
    assert connected == [("127.0.0.1", receiver.port)]
    (call,) = receiver.calls
    assert call.headers["host"] == f"hooks.example.com:{receiver.port}"
    publisher.close()
    assert publisher.publish([make_message()])[0].kind is OutcomeKind.UNANSWERED
    assert len(connected) == 1


def test_the_next_address_is_tried_if_one_refuses(receiver: Receiver, make_webhooks: MakePublisher, resolve: Resolve):
    # Nothing listens at the first one.
    connected = resolve({"hooks.example.com": [["127.0.0.9", "127.0.0.1"]]})
    assert make_webhooks(receiver.url(host="hooks.example.com")).publish([make_message()]) == [ACCEPTED]
    assert [address for address, _port in connected] == ["127.0.0.9", "127.0.0.1"]


def test_tls_verifies_the_name_although_an_address_is_connected_to(
    make_webhooks: MakePublisher, resolve: Resolve, tmp_path: Path
):
    make_certificate(tmp_path, "hooks", "DNS:hooks.example.com")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "hooks.pem", tmp_path / "hooks.key")
    resolve({"hooks.example.com": [["127.0.0.1"]], "other.example.com": [["127.0.0.1"]]})
    trust = {"cafile": str(tmp_path / "hooks.pem")}
    with Receiver(context=context) as receiver:
        url = receiver.url(host="hooks.example.com", scheme="https")
        assert make_webhooks(url, ssl=trust).publish([make_message()]) == [ACCEPTED]
        url = receiver.url(host="other.example.com", scheme="https")
        (outcome,) = make_webhooks(url, ssl=trust).publish([make_message()])
    assert outcome.kind is OutcomeKind.UNANSWERED
    assert "the receiver's TLS certificate is refused: Hostname mismatch" in outcome.error
