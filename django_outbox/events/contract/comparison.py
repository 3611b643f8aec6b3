"""Find the changes between two documents that break consumers.

A consumer relies on what the earlier document promises of each payload. A change breaks it if a new payload may not
keep that promise: a field is gone, may be missing or null, or has values of another kind. An added field breaks
nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import unquote

from django_outbox.events.contract.documents import read_document

Schema = Any

UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
"""Limits of values. A consumer may rely on them, for example for the width of a column."""


class _Side(NamedTuple):
    """A schema and the document that its references lead into."""

    schema: Schema
    root: Schema

    def resolved(self) -> "_Side":
        """Return what the schema refers to, if it is a reference."""
        schema = self.schema
        while isinstance(schema, Mapping) and "$ref" in schema:
            found = self.root
            for part in schema["$ref"].removeprefix("#").split("/")[1:]:
                found = found[unquote(part).replace("~1", "/").replace("~0", "~")]
            schema = found
        return self._replace(schema=schema)

    def at(self, schema: Schema) -> "_Side":
        return self._replace(schema=schema)

    @property
    def alternatives(self) -> list["_Side"]:
        """The schemas of which a value matches one."""
        side = self.resolved()
        if not isinstance(side.schema, Mapping):
            return [side.at({} if side.schema is not False else {"not": {}})]
        for keyword in ("anyOf", "oneOf"):
            if keyword in side.schema:
                return [each for part in side.schema[keyword] for each in side.at(part).alternatives]
        types = side.schema.get("type")
        if isinstance(types, list):
            return [side.at({**side.schema, "type": each}) for each in types]
        return [side]


def find_breaking_changes(earlier: Any, later: Any) -> Iterator[str]:
    """Yield a line for each change between two documents that breaks consumers.

    Args:
        earlier: a document that `outbox_events` wrote, as decoded JSON.
        later: a newer one. It need not be of the same kind.

    Raises:
        ValueError: one of them is another document.
    """
    new = read_document(later)
    for type, (old_metadata, old_schema) in sorted(read_document(earlier).items()):
        if type not in new:
            yield f"{type}: the event was removed"
            continue
        metadata, schema = new[type]
        before, after = old_metadata.get("destination"), metadata.get("destination")
        if before != after:
            yield f"{type}: it is sent to {after!r} instead of {before!r}"
        before, after = old_metadata.get("key", ""), metadata.get("key", "")
        if before != after:
            yield f"{type}: its key is {after!r} instead of {before!r}, which changes order and partitions"
        if metadata.get("version", 1) < old_metadata.get("version", 1):
            yield f"{type}: the version is {metadata.get('version', 1)}, but it was {old_metadata['version']}"
        yield from _Comparison(type).compare(_Side(old_schema, earlier), _Side(schema, later), "")


class _Comparison:
    """Compares the payloads of one event.

    Args:
        type: the type of the event, with which each line begins.
    """

    def __init__(self, type: str) -> None:
        self._type = type
        # The pairs of schemas that are being compared, because a schema may contain itself.
        self._open: set[tuple[int, int]] = set()

    def compare(self, old: _Side, new: _Side, path: str) -> list[str]:
        """Return a line for each change at a path that breaks consumers."""
        pair = (id(old.schema), id(new.schema))
        if pair in self._open:
            return []
        self._open.add(pair)
        try:
            return [*self._compare_alternatives(old.alternatives, new.alternatives, path)]
        finally:
            self._open.remove(pair)

    def _compare_alternatives(self, olds: Sequence[_Side], news: Sequence[_Side], path: str) -> Iterator[str]:
        """Compare each new alternative with the old one that it differs least from."""
        found = [[(old, [*self._compare_one(old, new, path)]) for old in olds if _same_kind(old, new)] for new in news]
        kept = [old for pairs in found for old, lines in pairs if not lines]
        for new, pairs in zip(news, found, strict=True):
            if not pairs:
                yield self._line(path, f"may be {_describe(new)}, but it was {_describe_all(olds)}")
                continue
            lines = min((lines for _, lines in pairs), key=len)
            if lines and _json_type(new.schema) == "object" and all(old in kept for old, _ in pairs):
                # All earlier alternatives are still there, so this one is not a changed one of them.
                names = " or ".join(_title(old) for old, _ in pairs)
                yield self._line(path, f"may be the new object {_title(new)}, but it was {names}")
            else:
                yield from lines

    def _compare_one(self, old: _Side, new: _Side, path: str) -> Iterator[str]:
        before, after = old.schema, new.schema
        if "not" in before or "not" in after:
            return
        yield from self._compare_values(before, after, path)
        for keyword in ("format", "pattern"):
            if before.get(keyword) != after.get(keyword) and keyword in before:
                yield self._line(path, f"has the {keyword} {after.get(keyword)!r} instead of {before[keyword]!r}")
        if before.get("uniqueItems") and not after.get("uniqueItems"):
            yield self._line(path, "may have an item twice")
        yield from self._compare_limits(before, after, path)
        yield from self._compare_fields(old, new, path)
        for keyword, name in (("items", "[]"), ("additionalProperties", "{}"), ("propertyNames", "{name}")):
            if isinstance(before.get(keyword), Mapping):
                yield from self.compare(old.at(before[keyword]), new.at(after.get(keyword, {})), f"{path}{name}")
        yield from self._compare_positions(old, new, path)

    def _compare_values(self, before: Schema, after: Schema, path: str) -> Iterator[str]:
        allowed = _values(before)
        if allowed is None:
            return
        values = _values(after)
        if values is None:
            yield self._line(path, f"may have any value, but it was one of {_list(allowed)}")
        elif added := [value for value in values if value not in allowed]:
            yield self._line(path, f"may have the new value {_list(added)}")

    def _compare_limits(self, before: Schema, after: Schema, path: str) -> Iterator[str]:
        if "prefixItems" in before:
            # Its length is compared position by position.
            return
        for keywords, sign in ((UPPER, 1), (LOWER, -1)):
            for keyword in keywords:
                if keyword in before and (keyword not in after or sign * (after[keyword] - before[keyword]) > 0):
                    limit = after.get(keyword, "none")
                    yield self._line(path, f"has a wider limit: {keyword} is {limit} instead of {before[keyword]}")
        factor, multiple = before.get("multipleOf"), after.get("multipleOf")
        if factor is not None and (multiple is None or Decimal(str(multiple)) % Decimal(str(factor)) != 0):
            limit = "none" if multiple is None else multiple
            yield self._line(path, f"has a wider limit: multipleOf is {limit} instead of {factor}")

    def _compare_fields(self, old: _Side, new: _Side, path: str) -> Iterator[str]:
        before, after = old.schema, new.schema
        fields = after.get("properties", {})
        for name, schema in before.get("properties", {}).items():
            field = f"{path}.{name}" if path else name
            if name not in fields:
                yield self._line(field, "was removed")
                continue
            if name in before.get("required", []) and name not in after.get("required", []):
                yield self._line(field, "may be missing")
            yield from self.compare(old.at(schema), new.at(fields[name]), field)

    def _compare_positions(self, old: _Side, new: _Side, path: str) -> Iterator[str]:
        before, after = old.schema.get("prefixItems", []), new.schema.get("prefixItems", [])
        for position, schema in enumerate(before):
            if position < len(after):
                yield from self.compare(old.at(schema), new.at(after[position]), f"{path}[{position}]")
            else:
                yield self._line(f"{path}[{position}]", "was removed")

    def _line(self, path: str, problem: str) -> str:
        return f"{self._type}: {path or 'the payload'} {problem}"


def _same_kind(old: _Side, new: _Side) -> bool:
    """Return whether values of the new schema are of the JSON type that the old one promises."""
    before, after = _json_type(old.schema), _json_type(new.schema)
    return before in (None, after) or (before, after) == ("number", "integer")


def _json_type(schema: Schema) -> str | None:
    """Return the JSON type of a schema, or None if a value may be of any."""
    if "type" in schema:
        return str(schema["type"])
    values = _values(schema)
    if values and len(kinds := {_TYPE_NAMES.get(type(value)) for value in values}) == 1:
        return kinds.pop()
    return None


_TYPE_NAMES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def _values(schema: Schema) -> list[Any] | None:
    """Return the values that a schema allows, or None if it does not list them."""
    if "const" in schema:
        return [schema["const"]]
    values: list[Any] | None = schema.get("enum")
    return values


def _describe(side: _Side) -> str:
    return _json_type(side.schema) or "any value"


def _title(side: _Side) -> str:
    return str(side.schema.get("title", "without a name"))


def _describe_all(sides: Sequence[_Side]) -> str:
    return " or ".join(dict.fromkeys(map(_describe, sides)))


def _list(values: Sequence[Any]) -> str:
    return ", ".join(map(repr, values))
