"""Certificates for servers of this machine."""

import datetime
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime.timedelta(days=1)


def make_certificate(folder: Path, name: str, address: str, *, issuer: str = "", is_expired: bool = False) -> None:
    """Write a certificate and its key to `name`.pem and `name`.key.

    Args:
        address: what it is valid for, such as `IP:127.0.0.1` or `DNS:shop.example.com`.
        issuer: the name of the certificate that signs it; by default it signs itself.
        is_expired: whether it was valid until yesterday, instead of from then on.
    """
    kind, _, value = address.partition(":")
    valid_for = x509.DNSName(value) if kind == "DNS" else x509.IPAddress(ipaddress.ip_address(value))
    yesterday = datetime.datetime.now(datetime.timezone.utc) - DAY
    key = ec.generate_private_key(ec.SECP256R1())
    signing: Any = key
    if issuer:
        signing = serialization.load_pem_private_key((folder / f"{issuer}.key").read_bytes(), None)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer or name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(yesterday - DAY if is_expired else yesterday)
        .not_valid_after(yesterday if is_expired else yesterday + 3 * DAY)
        .add_extension(x509.SubjectAlternativeName([valid_for]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(signing, hashes.SHA256())
    )
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
