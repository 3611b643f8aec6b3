"""Explain the errors of the network and of TLS that all brokers have in common, and name the remedy."""

import asyncio
import os
import socket
import ssl

_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons if the server answers a TLS handshake with something else, such as its protocol's own greeting."""


def explain_network(
    error: BaseException, *, server: str, option: str, without_tls: str, authority: str = "cafile in the option ssl"
) -> str:
    """Return why a server cannot be reached; empty if the error is of another kind.

    `server` is its name in a sentence, `option` has its address, `without_tls` is the remedy if the port does not speak
    TLS, and `authority` names the authority that has to sign the server's certificate.
    """
    text = ""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"{server}'s TLS certificate is refused: {error.verify_message}; check {authority}"
    elif isinstance(error, ssl.SSLError) and error.reason in _NOT_TLS:
        text = f"this port does not speak TLS ({error.reason}): {without_tls}"
    elif isinstance(error, socket.gaierror):
        text = f"the host name cannot be resolved, check the host in {option}: {error.strerror}"
    elif isinstance(error, ConnectionRefusedError):
        text = f"connection refused; start {server}, or correct host and port in {option}"
    elif isinstance(error, TimeoutError | asyncio.TimeoutError):
        text = "no response in time"
    elif type(error) is OSError and error.errno:
        text = os.strerror(error.errno)
    return text
