"""Message IDs of other systems as UUIDs that every database stores."""

import hashlib
import uuid

_NAMESPACE = uuid.UUID("6d1c3f0e-8a55-5b0c-9d0e-2f6f7a3c1b77")

MAX_VERSION = 7
"""Highest version of a UUID that every database stores. MariaDB refuses one in 64 with a higher version."""


def read_uuid(text: str) -> uuid.UUID | None:
    """Return the UUID that a text is; None if it is not one that every database stores."""
    try:
        found = uuid.UUID(text)
    except ValueError:
        return None
    return found if found.int >> 76 & 0xF <= MAX_VERSION else None


def derive_uuid(*parts: bytes) -> uuid.UUID:
    """Return a UUID that depends on these parts alone: version 5 of their SHA-256."""
    digest = hashlib.sha256()
    for part in parts:
        # With its length, so that ("ab", "c") and ("a", "bc") differ.
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return uuid.uuid5(_NAMESPACE, digest.hexdigest())


def id_of(text: str) -> uuid.UUID:
    """Return the ID of a message if it is a UUID, or a UUID derived from it."""
    return read_uuid(text) or derive_uuid(text.encode("utf-8", "surrogatepass"))
