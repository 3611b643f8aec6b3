"""Convert the instances of a class to JSON and back with pydantic, which only this module imports."""

import dataclasses
import json
import re
from contextlib import suppress
from functools import cached_property
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError
from typing_extensions import is_typeddict

from django_outbox.error_text import describe, one_line
from django_outbox.events.mistakes import find_converted_bool, find_surrogate
from django_outbox.exceptions import InvalidEvent

MAX_MISTAKES = 5
"""Maximum number of mistakes that an error lists."""


class Codec:
    """Encodes and decodes the instances of a dataclass, pydantic model, TypedDict or NamedTuple as JSON objects.

    Args:
        cls: the class.

    Raises:
        TypeError: it is another kind of class.
    """

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
        """Return an instance as a dict of JSON values.

        Raises:
            InvalidEvent: a field has a value of another type, or one that could not be decoded.
        """
        adapter = self._adapter
        if self._is_named_tuple:
            event = self._twin(*event)
        if self._is_closed and (unknown := sorted(map(str, event.keys() - set(self.field_names)))):
            # Pydantic would leave them out.
            raise InvalidEvent(f"{self._cls.__qualname__} has no field {', '.join(unknown[:MAX_MISTAKES])}")
        try:
            found: dict[str, Any] = adapter.dump_python(event, mode="json", by_alias=True, warnings="error")
            # Fields of a dataclass are not validated when it is made.
            decoded = adapter.validate_json(json.dumps(found))
        except ValidationError as error:
            raise InvalidEvent(find_surrogate(found) or _describe(error)) from None
        except (PydanticSerializationError, UnicodeError) as error:
            raise InvalidEvent(self._find_surrogate(event) or _without_values(error)) from None
        if issubclass(self._cls, BaseModel):
            # Pydantic converts a bool when the model is made, unless the model is strict.
            return found
        # A class may have serializers that work for JSON only.
        with suppress(PydanticSerializationError):
            if problem := find_converted_bool(self._dump_values(event), found, lambda: self._dump_values(decoded)):
                raise InvalidEvent(problem)
        return found

    def _find_surrogate(self, event: Any) -> str:
        with suppress(PydanticSerializationError, UnicodeError):
            return find_surrogate(self._dump_values(event))
        return ""

    def _dump_values(self, event: Any) -> Any:
        """Return an instance as a dict of Python values."""
        return self._adapter.dump_python(event, by_alias=True, warnings=False)

    def load(self, text: bytes | str) -> Any:
        """Return the instance that a JSON text describes.

        Raises:
            InvalidEvent: it does not match the class.
        """
        adapter = self._adapter
        try:
            found = adapter.validate_json(text)
        except ValidationError as error:
            raise InvalidEvent(_describe(error)) from None
        if self._is_named_tuple:
            return self._cls(*(getattr(found, name) for name in self.field_names))
        return found

    def schema(self, ref_template: str) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of the encoded instances.

        Args:
            ref_template: where a reference leads to; `{model}` is the name in the schema's `$defs`.

        Raises:
            InvalidEvent: a field has a type that JSON cannot represent.
        """
        try:
            return self._adapter.json_schema(
                mode="serialization", by_alias=True, ref_template=ref_template, schema_generator=_SchemaOfOutput
            )
        except PydanticUserError as error:
            raise InvalidEvent(_first_line(error)) from error

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        """The adapter, made when it is first needed, because annotations may name classes that are defined later."""
        try:
            return TypeAdapter(self._twin if self._is_named_tuple else self._cls)
        except (PydanticUserError, NameError, TypeError) as error:
            raise InvalidEvent(f"{self._cls.__qualname__}: {_first_line(error)}") from error

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
        raise TypeError(
            f"{cls.__qualname__} is not a dataclass, a pydantic model, a TypedDict or a NamedTuple. "
            "For a dataclass, write @event above @dataclass."
        )


class _SchemaOfOutput(GenerateJsonSchema):
    """Fields with a default are required, because they are always encoded."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        if field["type"] == "typed-dict-field":
            return super().field_is_required(field, total)
        return field.get("serialization_exclude_if") is None


def _describe(error: ValidationError) -> str:
    """Return the mistakes without the values, because the text may be logged."""
    mistakes = [
        f"{'.'.join(map(str, mistake['loc'])) or 'the payload'}: {mistake['msg']}"
        for mistake in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    hidden = len(mistakes) - MAX_MISTAKES
    more = [f"and {hidden:,} more"] if hidden > 0 else []
    return one_line("; ".join(mistakes[:MAX_MISTAKES] + more))


def _without_values(error: Exception) -> str:
    """Return the mistakes of a dump without the values, which pydantic quotes."""
    found = []
    for line in str(error).splitlines():
        if expected := re.search(r"Expected `([^`]+)`", line):
            name = re.search(r"\[field_name='([^']+)'", line)
            kind = re.search(r"input_type=(\w+)\]\)?$", line)
            actual = f", not {kind[1]}" if kind else ""
            found.append(f"{name[1] if name else 'a field'}: must be of type {expected[1]}{actual}")
    return one_line("; ".join(found[:MAX_MISTAKES]) or error)


def _first_line(error: Exception) -> str:
    # What follows is about pydantic's own API. `describe` writes line breaks as `\n`.
    return describe(error).partition("\\n")[0].rstrip(".")
