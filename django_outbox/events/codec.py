"""Convert dataclasses, pydantic models and TypedDicts to JSON and back with pydantic; only this module imports it."""

import dataclasses
import datetime
import re
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from functools import cached_property
from typing import Any, get_type_hints

from django.utils import timezone
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_json
from typing_extensions import is_typeddict

from django_outbox.exceptions import InvalidEvent
from django_outbox.utils.text import describe, one_line

MAX_MISTAKES = 5
"""Maximum number of validation errors in the text of one exception."""

DECIMAL = r"^-?\d+(\.\d+)?(E[+-]?\d+)?$"
"""The text of a decimal."""

SEQUENCES = (list, tuple)

UNORDERED = (set, frozenset, deque)

KEPT = {str, int, float, bool, type(None), Decimal, datetime.date, datetime.timedelta, uuid.UUID}
"""Types of values that arrive as they are if they are equal to what arrives."""


class Codec:
    def __init__(self, cls: type) -> None:
        if not isinstance(cls, type):
            raise TypeError(f"{cls!r} is not a class. Write @event above a class.")
        self._cls = cls
        self.is_typed_dict = is_typeddict(cls)
        # A dict may have keys that are not fields.
        self._is_closed = self.is_typed_dict and getattr(cls, "__pydantic_config__", {}).get("extra") != "allow"
        self.field_names = self._find_field_names()

    def dump(self, event: Any) -> dict[str, Any]:
        """Return an instance as a dict of JSON values; refuse values that would not arrive as they are."""
        adapter = self._adapter
        if self._is_closed and (unknown := sorted(map(str, event.keys() - set(self.field_names)))):
            # Pydantic would leave them out.
            raise InvalidEvent(f"{self._cls.__qualname__} has no field {', '.join(unknown[:MAX_MISTAKES])}")
        try:
            found: dict[str, Any] = adapter.dump_python(event, mode="json", by_alias=True, warnings="error")
            # Fields of a dataclass are not validated when it is made.
            decoded = adapter.validate_json(to_json(found, inf_nan_mode="constants"))
        except ValidationError as error:
            raise InvalidEvent(_describe(error)) from None
        except (PydanticSerializationError, UnicodeError) as error:
            raise InvalidEvent(_without_values(error)) from None
        except PydanticUserError as error:
            raise InvalidEvent(self._describe_annotation(error)) from None
        if problem := self._find_change(event, decoded):
            raise InvalidEvent(problem)
        return found

    def _find_change(self, event: Any, decoded: Any) -> str:
        # A class may have serializers that work for JSON only.
        with suppress(PydanticSerializationError):
            if found := find_change(self._dump_values(event), self._dump_values(decoded)):
                return f"{found[0] or 'the payload'}: {found[1]}"
            # Classes without equality always differ.
            if decoded == event:
                return ""
            return find_lost_field(
                self._dump_values(event, every_field=True), self._dump_values(decoded, every_field=True)
            )
        return ""

    def _dump_values(self, event: Any, *, every_field: bool = False) -> Any:
        """Return an instance as a dict of Python values.

        With `every_field`, it has the fields that a subclass of an annotation adds, and serializers of fields are
        ignored.
        """
        # The adapter's own method takes twice as long.
        return self._adapter.serializer.to_python(event, by_alias=True, warnings=False, serialize_as_any=every_field)

    def load(self, text: bytes | str) -> Any:
        """Return the instance that a JSON text describes; an InvalidEvent if the text does not match the class."""
        adapter = self._adapter
        try:
            return adapter.validate_json(text)
        except ValidationError as error:
            raise InvalidEvent(_describe(error)) from None
        except PydanticUserError as error:
            raise InvalidEvent(self._describe_annotation(error)) from None

    def schema(self, ref_template: str) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of the encoded instances."""
        try:
            return self._adapter.json_schema(
                mode="serialization", ref_template=ref_template, schema_generator=_SchemaOfOutput
            )
        except PydanticUserError as error:
            raise InvalidEvent(self._describe_annotation(error)) from error

    def _describe_annotation(self, error: Exception) -> str:
        try:
            get_type_hints(self._cls, include_extras=True)
        except NameError as undefined:
            where = f"{self._cls.__module__}.{self._cls.__qualname__}"
            return f"an annotation of {where} names {undefined.name!r}, which is not defined"
        except Exception:  # noqa: S110 - an annotation may be any expression
            pass
        # The other lines are about pydantic's own API. `describe` writes line breaks as `\n`.
        return describe(error).partition("\\n")[0].rstrip(".")

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        """The adapter, made when it is first needed, because annotations may name classes that are defined later."""
        try:
            return TypeAdapter(self._cls)
        except (PydanticUserError, NameError, TypeError) as error:
            raise InvalidEvent(f"{self._cls.__qualname__}: {self._describe_annotation(error)}") from error

    def _find_field_names(self) -> tuple[str, ...]:
        cls = self._cls
        if self.is_typed_dict:
            return tuple(sorted(cls.__required_keys__ | cls.__optional_keys__))  # type: ignore[attr-defined]
        # The class itself: a plain subclass of a dataclass has the fields of the dataclass only.
        if "__dataclass_fields__" in vars(cls):
            return tuple(field.name for field in dataclasses.fields(cls))
        if issubclass(cls, BaseModel):
            return tuple(cls.model_fields)
        raise TypeError(
            f"{cls.__qualname__} is not a dataclass, a pydantic model or a TypedDict. "
            "For a dataclass, write @event above @dataclass."
        )


class _SchemaOfOutput(GenerateJsonSchema):
    """Fields with a default are required, because they are always encoded. Decimals differ from other text."""

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        found = super().decimal_schema(schema)
        return {**found, "pattern": DECIMAL} if found.get("type") == "string" else found

    def field_is_required(self, field: Any, total: bool) -> bool:
        if field["type"] == "typed-dict-field":
            return super().field_is_required(field, total)
        return field.get("serialization_exclude_if") is None


def _describe(error: ValidationError) -> str:
    """Summarize validation errors without the values, because the text may be logged."""
    mistakes = [
        f"{'.'.join(map(str, mistake['loc'])) or 'the payload'}: {mistake['msg']}"
        for mistake in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    hidden = len(mistakes) - MAX_MISTAKES
    more = [f"and {hidden:,} more"] if hidden > 0 else []
    return one_line("; ".join(mistakes[:MAX_MISTAKES] + more))


def _without_values(error: Exception) -> str:
    """Summarize pydantic's serialization errors without the values they quote."""
    found = []
    for line in str(error).splitlines():
        if expected := re.search(r"Expected `([^`]+)`", line):
            name = re.search(r"\[field_name='([^']+)'", line)
            kind = re.search(r"input_type=(\w+)\]\)?$", line)
            actual = f", not {kind[1]}" if kind else ""
            found.append(f"{name[1] if name else 'a field'}: must be of type {expected[1]}{actual}")
    return one_line("; ".join(found[:MAX_MISTAKES]) or error)


def find_change(sent: Any, received: Any) -> tuple[str, str] | None:
    """Return the path of the first value that would not arrive as it was sent, and the problem, or None."""
    names: Iterable[Any]
    if isinstance(sent, dict) and isinstance(received, dict) and sent.keys() == received.keys():
        names = sent
        if problem := _describe_hidden_change(sent, received):
            return "", f"a key {problem}"
    elif isinstance(sent, SEQUENCES) and type(sent) is type(received) and len(sent) == len(received):
        names = range(len(sent))
    else:
        problem = _describe_change(sent, received)
        return ("", problem) if problem else None
    for name in names:
        value, other = sent[name], received[name]
        # Most values are of these types.
        if type(value) is type(other) and type(value) in KEPT and value == other:
            continue
        if found := find_change(value, other):
            path, problem = found
            return f"{name}.{path}" if path else str(name), problem
    return None


def _describe_change(sent: Any, received: Any) -> str:
    both = sent, received
    before, after = ([*_leaves(each)] if isinstance(sent, UNORDERED) else [each] for each in both)
    if problem := _describe_hidden_change(before, after):
        return problem
    kind: Any = type(sent)
    if sent == received or kind.__eq__ is object.__eq__ or _is_same_instant(sent, received):
        return ""
    # NaN differs from itself.
    if sent != sent and received != received:  # noqa: PLR0124
        return ""
    name, other = type(sent).__qualname__, type(received).__qualname__
    kind = f"as {other}, not {name}" if name != other else "changed"
    return f"would arrive {kind}. Give the field a type that keeps the value"


def _describe_hidden_change(sent: Iterable[Any], received: Iterable[Any]) -> str:
    """Return the problem of values that would arrive changed although they are equal."""
    # In Python, a bool is an int, so a type checker accepts it for an `int` or a `float`.
    if any(isinstance(each, bool) for each in sent) and not any(isinstance(each, bool) for each in received):
        return "must be a number, not bool"
    if any(map(_is_naive, received)):
        return (
            "is a naive datetime, which would arrive without a time zone. Pass an aware one, such as timezone.now(), "
            "or declare the field as text if its time has no zone"
        )
    return ""


def find_lost_field(sent: Any, received: Any, path: str = "") -> str:
    """Return the path of the first object that would arrive without some of its fields, and the problem."""
    names: Any
    if isinstance(sent, dict) and isinstance(received, dict):
        names = sent.keys()
        if lost := [str(name) for name in names if name not in received]:
            return f"{path or 'the payload'}: has {lost[0]!r}, which the class of its annotation lacks"
    elif isinstance(sent, SEQUENCES) and isinstance(received, SEQUENCES):
        names = range(min(len(sent), len(received)))
    else:
        return ""
    problems = (find_lost_field(sent[name], received[name], f"{path}.{name}" if path else str(name)) for name in names)
    return next(filter(None, problems), "")


def _is_naive(value: object) -> bool:
    return isinstance(value, datetime.datetime) and timezone.is_naive(value)


def _is_same_instant(sent: object, received: object) -> bool:
    """Return whether two aware times are the same. Python's `==` is False for a repeated hour in another time zone."""
    times = [each for each in (sent, received) if isinstance(each, datetime.datetime) and each.utcoffset() is not None]
    return len(times) == 2 and len({each.astimezone(datetime.timezone.utc) for each in times}) == 1


def _leaves(value: Any) -> Iterator[Any]:
    """Yield each value that is not a container, keys included."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _leaves(each)
    elif isinstance(value, (*SEQUENCES, *UNORDERED)):
        for each in value:
            yield from _leaves(each)
    else:
        yield value
