"""The fields of records. One declaration fills a record from a shard's message, and describes it in the HTTP API."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nstance.admin import json_schema
from nstance.admin.json_schema import Schema


def timestamp_ms(milliseconds: int) -> str | None:
    """In UTC. None for 0, which means never or unknown."""
    if not milliseconds:
        return None
    at = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Kind:
    schema: Schema
    read: Callable[[Any, str], Any] = getattr  # from a message and the name of the field


class Shape:
    """The fields of a record, in the order in which people see them."""

    def __init__(self, *fields: tuple[str, Kind]) -> None:
        """Several names with the same kind are separated by blanks."""
        self._kinds = {name: kind for names, kind in fields for name in names.split()}
        self.schema = json_schema.record_schema({name: kind.schema for name, kind in self._kinds.items()})

    def plus(self, *fields: tuple[str, Kind]) -> "Shape":
        return Shape(*self._kinds.items(), *fields)

    def fill(self, message: Any, **given: Any) -> dict[str, Any]:
        """`given` has the fields that are not read from the message."""
        return {name: given[name] if name in given else kind.read(message, name) for name, kind in self._kinds.items()}


def _non_empty(message: Any, name: str) -> Any:
    return getattr(message, name) or None


def _present(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


TEXT = Kind(json_schema.TEXT)
NUMBER = Kind(json_schema.NUMBER)
REAL = Kind(json_schema.REAL)
FLAG = Kind(json_schema.FLAG)
OPTIONAL = Kind(json_schema.OPTIONAL, _non_empty)  # None for an empty text
PRESENT = Kind(json_schema.OPTIONAL, _present)  # None if it is not set
PRESENT_NUMBER = Kind(json_schema.OPTIONAL_NUMBER, _present)
PRESENT_REAL = Kind(json_schema.OPTIONAL_REAL, _present)
TIME = Kind(json_schema.TIME, lambda message, name: timestamp_ms(getattr(message, f"{name}_unix_ms")))
TEXTS = Kind(json_schema.TEXTS, lambda message, name: list(getattr(message, name)))
MAP = Kind(json_schema.map_schema(json_schema.TEXT), lambda message, name: dict(sorted(getattr(message, name).items())))


def nested(shape: Shape) -> Kind:
    return Kind(shape.schema, lambda message, name: shape.fill(getattr(message, name)))


def many(shape: Shape) -> Kind:
    schema = json_schema.list_schema(shape.schema)
    return Kind(schema, lambda message, name: [shape.fill(each) for each in getattr(message, name)])


def one(shape: Shape, schema: str) -> Kind:
    """None if the message has none. `schema`: its name in the HTTP API."""

    def read(message: Any, name: str) -> dict[str, Any] | None:
        return shape.fill(getattr(message, name)) if message.HasField(name) else None

    return Kind(json_schema.optional_ref(schema), read)
