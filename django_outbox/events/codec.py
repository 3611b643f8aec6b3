"""Convert the instances of a class to JSON and back with pydantic, which only this module imports."""

import dataclasses
import datetime
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any, get_type_hints

from django.utils import timezone
from django.utils.functional import Promise
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from typing_extensions import is_typeddict

from django_outbox.enqueueing.events import ATTRIBUTE
from django_outbox.exceptions import InvalidEvent
from django_outbox.utils.text import describe, one_line

MAX_MISTAKES = 5
"""Maximum number of validation errors in the text of one exception."""

DECIMAL = r"^-?\d+(\.\d+)?(E[+-]?\d+)?$"
"""The text of a decimal."""


class Codec:
    """Encodes and decodes the instances of a dataclass, pydantic model, TypedDict or NamedTuple as JSON objects."""

    def __init__(self, cls: type) -> None:
        if not isinstance(cls, type):
            raise TypeError(f"{cls!r} is not a class. Write @event above a class.")
        self._cls = cls
        self._is_named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
        self.is_typed_dict = is_typeddict(cls)
        # A dict may have keys that are not fields.
        self._is_closed = self.is_typed_dict and getattr(cls, "__pydantic_config__", {}).get("extra") != "allow"
        self.field_names = self._find_field_names()

    def dump(self, event: Any) -> dict[str, Any]:
        """Return an instance as a dict of JSON values; refuse values that could not be decoded as they are."""
        adapter = self._adapter
        if self._is_named_tuple:
            event = self._twin(*event)
        if self._is_closed and (unknown := sorted(map(str, event.keys() - set(self.field_names)))):
            # Pydantic would leave them out.
            raise InvalidEvent(f"{self._cls.__qualname__} has no field {', '.join(unknown[:MAX_MISTAKES])}")
        try:
            found: dict[str, Any] = adapter.dump_python(event, mode="json", by_alias=True, warnings="error")
            # Fields of a dataclass are not validated when it is made.
            decoded = adapter.validate_json(to_json(found, inf_nan_mode="constants"))
        except ValidationError as error:
            raise InvalidEvent(find_surrogate(found) or _describe(error)) from None
        except (PydanticSerializationError, UnicodeError) as error:
            raise InvalidEvent(self._locate(event) or _without_values(error)) from None
        except PydanticUserError as error:
            raise InvalidEvent(self._describe_annotation(error)) from None
        if self._has_times and (problem := find_naive(self._dump_values(decoded))):
            raise InvalidEvent(problem)
        # A class may have serializers that work for JSON only.
        with suppress(PydanticSerializationError):
            # Pydantic converts a bool when a model is made, unless the model is strict.
            if not issubclass(self._cls, BaseModel) and (
                problem := find_converted_bool(self._dump_values(event), found, lambda: self._dump_values(decoded))
            ):
                raise InvalidEvent(problem)
            # Classes without equality always differ, so the fields decide.
            if decoded != event and (problem := self._find_change(event, decoded)):
                raise InvalidEvent(problem)
        return found

    def _locate(self, event: Any) -> str:
        with suppress(PydanticSerializationError, UnicodeError):
            values = self._dump_values(event)
            return find_surrogate(values) or find_unserializable(values)
        return ""

    def _find_change(self, event: Any, decoded: Any) -> str:
        return find_change(self._dump_values(event), self._dump_values(decoded)) or find_lost_field(
            self._dump_values(event, every_field=True), self._dump_values(decoded, every_field=True)
        )

    def _dump_values(self, event: Any, *, every_field: bool = False) -> Any:
        """Return an instance as a dict of Python values.

        With `every_field`, it has the fields that a subclass of an annotation adds, and serializers of fields are
        ignored.
        """
        return self._adapter.dump_python(event, by_alias=True, warnings=False, serialize_as_any=every_field)

    def is_parametrized(self, cls: type) -> bool:
        """Return whether another class is this generic pydantic model with types filled in."""
        return vars(cls).get("__pydantic_generic_metadata__", {}).get("origin") is self._cls

    def load(self, text: bytes | str) -> Any:
        """Return the instance that a JSON text describes; an InvalidEvent if the text does not match the class."""
        adapter = self._adapter
        try:
            found = adapter.validate_json(text)
        except ValidationError as error:
            raise InvalidEvent(_describe(error)) from None
        except PydanticUserError as error:
            raise InvalidEvent(self._describe_annotation(error)) from None
        if self._is_named_tuple:
            return self._cls(*(getattr(found, name) for name in self.field_names))
        return found

    def schema(self, ref_template: str, *, by_alias: bool = True) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of the encoded instances, with the aliases of fields if `by_alias`."""
        try:
            return self._adapter.json_schema(
                mode="serialization", by_alias=by_alias, ref_template=ref_template, schema_generator=_SchemaOfOutput
            )
        except PydanticUserError as error:
            raise InvalidEvent(self._describe_annotation(error)) from error

    def find_lost_fields(self) -> Iterator[tuple[str, str]]:
        """Yield the fields that never arrive as they are sent, and the reason."""
        schema = self.schema("#/$defs/{model}", by_alias=False)
        fields = schema.get("$defs", {}).get(schema.get("$ref", "").removeprefix("#/$defs/"), schema)
        for name in self.field_names:
            if name not in fields.get("properties", {}):
                yield name, "is excluded from what is written"
        for name in _find_secrets(schema, ""):
            yield name, "is a secret, which is written as asterisks"

    def _describe_annotation(self, error: Exception) -> str:
        """Return the field with an annotation that is not defined, or pydantic's description."""
        is_undefined = isinstance(error, NameError) or getattr(error, "code", "") == "class-not-fully-defined"
        name = self._find_undefined() if is_undefined else ""
        if not name:
            # The other lines are about pydantic's own API. `describe` writes line breaks as `\n`.
            return describe(error).partition("\\n")[0].rstrip(".")
        word = re.compile(rf"\b{re.escape(name)}\b")
        annotations: dict[str, Any] = {}
        # From Python 3.14 on, reading them evaluates them.
        with suppress(NameError):
            annotations = getattr(self._cls, "__annotations__", {})
        fields = [field for field, annotation in annotations.items() if word.search(str(annotation))]
        where = fields[0] if fields else self._cls.__qualname__
        return f"{where}: its annotation names {name!r}, which is not defined in {self._cls.__module__}"

    def _find_undefined(self) -> str:
        try:
            get_type_hints(self._cls, include_extras=True)
        except NameError as error:
            return error.name or ""
        except Exception:
            # An annotation may be any expression.
            return ""
        return ""

    @cached_property
    def _has_times(self) -> bool:
        return "'type': 'datetime'" in str(self._adapter.core_schema)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        """The adapter, made when it is first needed, because annotations may name classes that are defined later."""
        try:
            return TypeAdapter(self._twin if self._is_named_tuple else self._cls)
        except (PydanticUserError, NameError, TypeError) as error:
            raise InvalidEvent(f"{self._cls.__qualname__}: {self._describe_annotation(error)}") from error

    @cached_property
    def _twin(self) -> type:
        """A dataclass with the fields of a NamedTuple, which pydantic would encode as an array."""
        hints = get_type_hints(self._cls, include_extras=True)
        defaults = self._cls._field_defaults  # type: ignore[attr-defined]
        fields: list[Any] = []
        for name in self.field_names:
            if name in defaults:
                default = dataclasses.field(default_factory=lambda value=defaults[name]: value)  # type: ignore[misc]
                fields.append((name, hints[name], default))
            else:
                fields.append((name, hints[name]))
        return dataclasses.make_dataclass(
            self._cls.__name__, fields, namespace={"__doc__": self._cls.__doc__, "__module__": self._cls.__module__}
        )

    def _find_field_names(self) -> tuple[str, ...]:
        cls = self._cls
        if self._is_named_tuple:
            return tuple(cls._fields)  # type: ignore[attr-defined]
        if self.is_typed_dict:
            return tuple(sorted(cls.__required_keys__ | cls.__optional_keys__))  # type: ignore[attr-defined]
        # The class itself: a plain subclass of a dataclass has the fields of the dataclass only.
        if "__dataclass_fields__" in vars(cls):
            return tuple(field.name for field in dataclasses.fields(cls))
        if issubclass(cls, BaseModel):
            return tuple(cls.model_fields)
        if issubclass(cls, dict) and (parents := [each for each in cls.__mro__[1:] if ATTRIBUTE in vars(each)]):
            name = parents[0].__qualname__
            raise TypeError(
                f"{cls.__qualname__} inherits from the event {name}, which @event has made a class of dicts and no "
                f"TypedDict any more. Move the fields of {name} to a TypedDict without @event, and let both inherit "
                "from it."
            )
        raise TypeError(
            f"{cls.__qualname__} is not a dataclass, a pydantic model, a TypedDict or a NamedTuple. "
            "For a dataclass, write @event above @dataclass."
        )


def _find_secrets(schema: Any, name: str) -> Iterator[str]:
    """Yield the names of the fields in a JSON Schema that are only read."""
    if isinstance(schema, dict):
        if schema.get("writeOnly") is True:
            yield name
        for keyword, below in schema.items():
            if keyword == "properties":
                for field, each in below.items():
                    yield from _find_secrets(each, field)
            elif keyword not in ("default", "const", "enum", "examples"):
                yield from _find_secrets(below, name)
    elif isinstance(schema, list):
        for each in schema:
            yield from _find_secrets(each, name)


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


def find_surrogate(encoded: Any) -> str:
    """Return the path of the first text with a lone surrogate, and the problem; empty if there is none."""
    for path, value in _walk(encoded):
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{path}: contains a lone surrogate, which cannot be encoded as UTF-8"
        except AttributeError:
            continue
    return ""


def find_naive(values: Any) -> str:
    """Return the path of the first naive datetime, and the problem; empty if there is none."""
    for path, value in _walk(values):
        if isinstance(value, datetime.datetime) and timezone.is_naive(value):
            return (
                f"{path}: is a naive datetime, which would arrive without a time zone. Pass an aware one, such as "
                "timezone.now(), or declare the field as text if its time has no zone"
            )
    return ""


def find_unserializable(values: Any) -> str:
    """Return the path of the first value that cannot be written as JSON, and the problem; empty if there is none."""
    for path, value in _walk(values):
        with suppress(PydanticSerializationError, UnicodeError):
            to_jsonable_python(value)
            continue
        if isinstance(value, Promise):
            return f"{path}: is a lazy translation; call str() on it"
        if isinstance(value, bytes | bytearray):
            return f"{path}: contains bytes that are not UTF-8"
        return f"{path}: a value of type {type(value).__qualname__} cannot be written as JSON"
    return ""


def find_change(sent: Any, received: Any, path: str = "") -> str:
    """Return the path of the first value that would not arrive as it was sent, and the problem; empty if there is none.

    `sent` is the event as Python values, and `received` the encoded event as Python values again.
    """
    kind: Any = type(sent)
    if sent == received or kind.__eq__ is object.__eq__:
        return ""
    # NaN differs from itself.
    if sent != sent and received != received:  # noqa: PLR0124
        return ""
    if _is_same_instant(sent, received):
        return ""
    if isinstance(sent, dict) and isinstance(received, dict):
        is_alike = sent.keys() == received.keys()
    else:
        is_alike = isinstance(sent, _SEQUENCES) and type(sent) is type(received) and len(sent) == len(received)
    if is_alike:
        return _find_below(find_change, sent, received, path)
    before, after = type(sent).__qualname__, type(received).__qualname__
    kind = f"as {after}, not {before}" if before != after else "changed"
    return f"{path or 'the payload'}: would arrive {kind}. Give the field a type that keeps the value"


def find_lost_field(sent: Any, received: Any, path: str = "") -> str:
    """Return the path of the first object that would arrive without some of its fields, and the problem."""
    if isinstance(sent, dict) and isinstance(received, dict):
        if lost := [str(name) for name in sent if name not in received]:
            return f"{path or 'the payload'}: has {lost[0]!r}, which the class of its annotation lacks"
    elif not (isinstance(sent, _SEQUENCES) and isinstance(received, _SEQUENCES)):
        return ""
    return _find_below(find_lost_field, sent, received, path)


def _find_below(find: Callable[[Any, Any, str], str], sent: Any, received: Any, path: str) -> str:
    """Return the first problem that `find` finds in the values of two dicts or sequences."""
    names = sent.keys() if isinstance(sent, dict) else range(min(len(sent), len(received)))
    problems = (find(sent[name], received[name], _below(path, name)) for name in names)
    return next(filter(None, problems), "")


def _is_same_instant(sent: object, received: object) -> bool:
    """Return whether two aware times are the same. Python's `==` is False for a repeated hour in another time zone."""
    times = [each for each in (sent, received) if isinstance(each, datetime.datetime) and each.utcoffset() is not None]
    return len(times) == 2 and len({each.astimezone(datetime.timezone.utc) for each in times}) == 1


def _below(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def find_converted_bool(values: Any, encoded: Any, read_back: Callable[[], Any]) -> str:
    """Return the path of the first boolean that was encoded as a number, and the problem; empty if there is none.

    In Python, a bool is an int, so a type checker accepts it for an `int` or a `float`, and pydantic encodes it as 1
    or 0. `read_back` returns the encoded event as Python values again; it is called only if there may be a mistake,
    because a class may encode its booleans as numbers.
    """
    if not _has_converted(values, encoded):
        return ""
    suspicious = {path for path, value, number in _pairs(values, encoded) if _has_converted(value, number)}
    for path, _, read in _pairs(values, read_back()):
        if path in suspicious and not isinstance(read, bool):
            return f"{path}: must be a number, not bool"
    return ""


def _has_converted(value: Any, encoded: Any) -> bool:
    """Return whether a boolean was encoded as a number. Every event is searched, so it does without paths."""
    if value is True or value is False:
        return encoded is not value and isinstance(encoded, int | float)
    if type(value) is dict and type(encoded) is dict:
        return any(map(_has_converted, value.values(), encoded.values()))
    if type(value) in _SEQUENCES and type(encoded) is list:
        return any(map(_has_converted, value, encoded))
    return False


_SEQUENCES = (list, tuple)


def _pairs(first: Any, second: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path of each value that is not a container, and both values. The class determines the order of keys."""
    if isinstance(first, dict) and isinstance(second, dict):
        for value, (name, other) in zip(first.values(), second.items(), strict=False):
            yield from _pairs(value, other, _below(path, name))
    elif isinstance(first, _SEQUENCES) and isinstance(second, _SEQUENCES):
        for index, (value, other) in enumerate(zip(first, second, strict=False)):
            yield from _pairs(value, other, f"{path}.{index}")
    else:
        yield path, first, second


def _walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of each value that is not a container, and the value; for a key, the path of its value."""
    if isinstance(value, dict):
        for name, each in value.items():
            below = _below(path, name)
            yield ascii(below), name
            yield from _walk(each, below)
    elif isinstance(value, (*_SEQUENCES, set, frozenset, deque)):
        for index, each in enumerate(value):
            yield from _walk(each, f"{path}.{index}")
    else:
        yield path, value
