"""Certificates for servers of this machine."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str, address: str) -> None:
    """Write a self-signed certificate and its key to `name`.pem and `name`.key.

    Args:
        folder: where to write them.
        name: the name of the files.
        address: what it is valid for, such as `IP:127.0.0.1` or `DNS:shop.example.com`.
    """
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-days", "2", "-nodes"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-subj", f"/CN={name}", "-addext", f"subjectAltName={address}"),
            *("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"),
        ],
        check=True,
        capture_output=True,
    )
