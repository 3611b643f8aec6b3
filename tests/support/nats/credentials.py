"""A server of NATS with an operator, an account and a user, whose credentials are a JWT and a seed."""

import base64
import hashlib
import json
import time
from typing import Any

import nkeys

UNLIMITED = dict.fromkeys(
    (
        "subs",
        "data",
        "payload",
        "imports",
        "exports",
        "conn",
        "leaf",
        "mem_storage",
        "disk_storage",
        "streams",
        "consumer",
    ),
    -1,
)


def make_credentials() -> tuple[str, str]:
    """Return the configuration of a server, and a `.creds` file for it."""
    operator, account, system = (
        _key(number, prefix)[0]
        for number, prefix in enumerate(
            (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_ACCOUNT), start=1
        )
    )
    user, seed = _key(4, nkeys.PREFIX_BYTE_USER)
    account_id, system_id = _id(account), _id(system)
    limits = {**UNLIMITED, "wildcards": True}
    own = _sign(operator, operator, {"type": "operator", "system_account": system_id})
    preload = {
        account_id: _sign(operator, account, {"type": "account", "limits": limits}),
        system_id: _sign(
            operator, system, {"type": "account", "limits": {**limits, "mem_storage": 0, "disk_storage": 0}}
        ),
    }
    accounts = ", ".join(f"{id}: {jwt}" for id, jwt in preload.items())
    config = f"operator: {own}\nsystem_account: {system_id}\nresolver: MEMORY\nresolver_preload: {{ {accounts} }}\n"
    jwt = _sign(account, user, {"type": "user", "subs": -1, "data": -1, "payload": -1})
    return config, (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def _key(number: int, prefix: int) -> tuple[Any, str]:
    seed = nkeys.encode_seed(bytes([number]) * 32, prefix)
    return nkeys.from_seed(bytearray(seed)), seed.decode()


def _id(key: Any) -> str:
    return str(key.public_key.decode())


def _sign(issuer: Any, subject: Any, claims: dict[str, Any]) -> str:
    body = {
        "iat": int(time.time()),
        "iss": _id(issuer),
        "name": "test",
        "sub": _id(subject),
        "nats": {**claims, "version": 2},
    }
    digest = hashlib.sha256(json.dumps(body).encode()).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{_encode({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encode(body)}"
    return f"{text}.{_base64(issuer.sign(text.encode()))}"


def _encode(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
