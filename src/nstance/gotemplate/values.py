"""The values of a template, with the semantics of Go.

Only None, bool, int, float, str, sequences and string-keyed mappings are accepted, so no Python attribute is reachable. A
Go string is a sequence of bytes: bytes that are not UTF-8 are surrogate escapes here, and `byte_length` counts bytes.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from nstance.gotemplate.errors import UnlocatedError


class ValueType(Enum):
    """The type of a value, with Go's name for it."""

    NIL = "nil"
    BOOL = "bool"
    INT = "int"
    FLOAT = "float64"
    TEXT = "string"
    LIST = "[]interface {}"
    MAP = "map[string]interface {}"


class Absent:
    """The value of a missing key (with its name), or nil after a pipeline (no name).

    It differs from None as an invalid value differs from a nil interface in Go: its fields are absent too.
    """

    __slots__ = ("name",)

    def __init__(self, name: str = "") -> None:
        self.name = name


NOTHING = Absent()

# Any on purpose: templates are dynamically typed, and `type_of` checks.
Value = Any

_TYPES: Mapping[type, ValueType] = {
    bool: ValueType.BOOL,
    int: ValueType.INT,
    float: ValueType.FLOAT,
    str: ValueType.TEXT,
    dict: ValueType.MAP,
    list: ValueType.LIST,
    tuple: ValueType.LIST,
    type(None): ValueType.NIL,
    Absent: ValueType.NIL,
    Mapping: ValueType.MAP,  # for subclasses, in this order
}


def type_of(value: Value) -> ValueType:
    if (known := _TYPES.get(type(value))) is not None:
        return known
    for kind, name in _TYPES.items():
        if isinstance(value, kind):
            return name
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return ValueType.LIST
    raise UnlocatedError(f"data holds a {type(value).__name__}; expected text, number, bool, list, map or nothing")


def is_true(value: Value) -> bool:
    match type_of(value):
        case ValueType.NIL:
            return False
        case ValueType.TEXT | ValueType.LIST | ValueType.MAP:
            return len(value) > 0
        case _:
            return bool(value != 0)


def get_field(value: Value, key: str, *, path: str) -> Value:
    """`.key` of a value. `path` is the name of a missing result."""
    if isinstance(value, Absent):
        return Absent(path) if value.name else value
    found = type_of(value)
    if found is ValueType.MAP:
        return value[key] if key in value else Absent(path)
    if found is ValueType.NIL:
        raise UnlocatedError(f"field {key} of nil; expected a map")
    raise UnlocatedError(f"field {key} of a value of type {found.value}; expected a map")


def sorted_items(value: Mapping[str, Value]) -> list[tuple[str, Value]]:
    """The entries of a map in the order in which Go prints them."""
    for key in value:
        if not isinstance(key, str):
            raise UnlocatedError(f"data holds a map with a key of type {type(key).__name__}; expected text")
    return sorted(value.items())


def encode(text: str) -> bytes:
    """The bytes of a Go string. A lone surrogate that represents no byte becomes three bytes."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def byte_length(text: str) -> int:
    return len(text) if text.isascii() else len(encode(text))


def is_equal(first: Value, others: Sequence[Value]) -> bool:
    """Whether the first equals any of the others. As in Go, integers and floats cannot be compared."""
    if not others:
        raise UnlocatedError("missing argument for comparison")
    return any(_same(first, other) for other in others)


def _same(first: Value, second: Value) -> bool:
    one, two = type_of(first), type_of(second)
    if ValueType.NIL in (one, two):
        return one is two
    if {one, two} <= {ValueType.LIST, ValueType.MAP}:
        raise UnlocatedError(f"values of type {one.value} do not compare")
    if one is not two:
        raise UnlocatedError(f"incompatible types for comparison: {one.value} and {two.value}")
    return bool(first == second)


def is_less(first: Value, second: Value) -> bool:
    one, two = type_of(first), type_of(second)
    ordered = (ValueType.INT, ValueType.FLOAT, ValueType.TEXT)
    if one not in ordered or two not in ordered:
        raise UnlocatedError(f"values of type {one.value} and {two.value} have no order")
    if one is not two:
        raise UnlocatedError(f"incompatible types for comparison: {one.value} and {two.value}")
    if one is ValueType.TEXT:
        return encode(first) < encode(second)
    return bool(first < second)


def get_index(value: Value, keys: Sequence[Value], *, path: str) -> Value:
    """`value[key][key]…`. A missing map key is an absent value, an index beyond the end of a list an error."""
    if type_of(value) is ValueType.NIL:
        raise UnlocatedError("index of nil; expected a list, map or text")
    for key in keys:
        found, wanted = type_of(value), type_of(key)
        if found is ValueType.MAP:
            if wanted is not ValueType.TEXT:
                raise UnlocatedError(f"map key of type {wanted.value}; expected string")
            path = f"{path}.{key}"
            value = value[key] if key in value else Absent(path)
        elif found in (ValueType.LIST, ValueType.TEXT):
            if wanted is not ValueType.INT:
                raise UnlocatedError(f"index of type {wanted.value}; expected int")
            data = encode(value) if found is ValueType.TEXT else value
            if not 0 <= key < len(data):
                raise UnlocatedError(f"index out of range: {key}; expected less than {len(data)}")
            path = f"{path}[{key}]"
            value = data[key]
        elif found is ValueType.NIL:
            raise UnlocatedError("index of nil; expected a list, map or text")
        else:
            raise UnlocatedError(f"index of a value of type {found.value}; expected a list, map or text")
    return value


def length(value: Value) -> int:
    found = type_of(value)
    if found is ValueType.TEXT:
        return byte_length(value)
    if found in (ValueType.LIST, ValueType.MAP):
        return len(value)
    raise UnlocatedError(f"len of a value of type {found.value}; expected a list, map or text")
