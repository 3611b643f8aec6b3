"""The points at which a relay kills itself."""

POINTS = (
    "before the claim is read",
    "before the effect",
    "after the effect",
    "after the savepoint",
    "before the settlement",
    "after the settlement",
    "after the commit, in a hook",
    "after the commit",
)
"""The points in the order of a batch."""
