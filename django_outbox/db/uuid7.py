"""UUID version 7 (RFC 9562): unique and increasing with time, so that new ones go to the end of their index."""

import sys
import uuid

if sys.version_info >= (3, 14):
    from uuid import uuid7 as _uuid7
else:
    from uuid6 import uuid7 as _uuid7


def uuid7() -> uuid.UUID:
    """Return a new UUID of version 7. Migrations refer to this name on every version of Python."""
    return _uuid7()
