"""JSON values at the limits of what a database stores."""

from typing import Any


def nested(depth: int, kind: type = list) -> Any:
    value: Any = {} if kind is dict else kind()
    for _ in range(depth - 1):
        value = {"a": value} if kind is dict else kind([value])
    return value
