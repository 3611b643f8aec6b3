"""Which types of messages a publisher knows."""


def is_known_type(publisher_alias: str, type: str) -> bool:
    """Return whether a publisher can do something with messages of this type. Every broker can."""
    return True
