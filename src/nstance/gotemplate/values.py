"""The values a template can hold, seen the way Go sees them.

Only None, bool, int, float, str, sequences and string-keyed mappings exist; any other object is refused, so that no
Python attribute is ever within reach. A text is a sequence of bytes to Go: bytes that are not UTF-8 live in our strings
as surrogate escapes, and `size` and `byte_at` count bytes.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from nstance.gotemplate.errors import Fault


class Sort(Enum):
    """A value's type, with Go's name for it."""

    NIL = "nil"
    BOOL = "bool"
    INT = "int"
    FLOAT = "float64"
    TEXT = "string"
    LIST = "[]interface {}"
    MAP = "map[string]interface {}"


class Absent:
    """Nothing: the value of a key that is not there (with the key's name), or nil after a pipeline (no name).

    It differs from None as an invalid value differs from a nil interface in Go: its fields are absent too.
    """

    __slots__ = ("name",)

    def __init__(self, name: str = "") -> None:
        self.name = name


NOTHING = Absent()

# Values are Any on purpose: a template is dynamically typed, and `sort` is the check.
Value = Any

_SORTS: Mapping[type, Sort] = {
    str: Sort.TEXT,
    int: Sort.INT,
    bool: Sort.BOOL,
    float: Sort.FLOAT,
    dict: Sort.MAP,
    list: Sort.LIST,
    tuple: Sort.LIST,
    type(None): Sort.NIL,
    Absent: Sort.NIL,
}


def sort(value: Value) -> Sort:
    known = _SORTS.get(type(value))
    if known is not None:
        return known
    for kind, name in ((bool, Sort.BOOL), (int, Sort.INT), (float, Sort.FLOAT), (str, Sort.TEXT), (Mapping, Sort.MAP)):
        if isinstance(value, kind):
            return name
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return Sort.LIST
    raise Fault(f"data holds a {type(value).__name__}; expected text, number, bool, list, map or nothing")


def truth(value: Value) -> bool:
    match sort(value):
        case Sort.NIL:
            return False
        case Sort.TEXT | Sort.LIST | Sort.MAP:
            return len(value) > 0
        case _:
            return bool(value != 0)


def field(value: Value, key: str, *, path: str) -> Value:
    """`.key` of a value; `path` names the result if there is no such key."""
    if isinstance(value, Absent):
        return Absent(path) if value.name else value
    found = sort(value)
    if found is Sort.MAP:
        return value[key] if key in value else Absent(path)
    if found is Sort.NIL:
        raise Fault(f"field {key} of nil; expected a map")
    raise Fault(f"field {key} of a value of type {found.value}; expected a map")


def items(value: Mapping[str, Value]) -> list[tuple[str, Value]]:
    """A map's entries in the order Go prints and ranges them."""
    for key in value:
        if not isinstance(key, str):
            raise Fault(f"data holds a map with a key of type {type(key).__name__}; expected text")
    return sorted(value.items())


def encode(text: str) -> bytes:
    """The bytes Go would hold. A lone surrogate that stands for no byte becomes three bytes, as Go has no such thing."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def size(text: str) -> int:
    return len(text) if text.isascii() else len(encode(text))


def equal(first: Value, others: Sequence[Value]) -> bool:
    """Whether the first is equal to any of the others. Integers and floats do not compare, as in Go."""
    if not others:
        raise Fault("missing argument for comparison")
    return any(_same(first, other) for other in others)


def _same(first: Value, second: Value) -> bool:
    one, two = sort(first), sort(second)
    if Sort.NIL in (one, two):
        return one is two
    if {one, two} <= {Sort.LIST, Sort.MAP}:
        raise Fault(f"values of type {one.value} do not compare")
    if one is not two:
        raise Fault(f"incompatible types for comparison: {one.value} and {two.value}")
    return bool(first == second)


def less(first: Value, second: Value) -> bool:
    one, two = sort(first), sort(second)
    ordered = (Sort.INT, Sort.FLOAT, Sort.TEXT)
    if one not in ordered or two not in ordered:
        raise Fault(f"values of type {one.value} and {two.value} have no order")
    if one is not two:
        raise Fault(f"incompatible types for comparison: {one.value} and {two.value}")
    if one is Sort.TEXT:
        return encode(first) < encode(second)
    return bool(first < second)


def index(value: Value, keys: Sequence[Value], *, path: str) -> Value:
    """`value[key][key]…`; a key that a map lacks gives an absent value, a place beyond a list's end is an error."""
    if sort(value) is Sort.NIL:
        raise Fault("index of nil; expected a list, map or text")
    for key in keys:
        found, wanted = sort(value), sort(key)
        if found is Sort.MAP:
            if wanted is not Sort.TEXT:
                raise Fault(f"map key of type {wanted.value}; expected string")
            path = f"{path}.{key}"
            value = value[key] if key in value else Absent(path)
        elif found in (Sort.LIST, Sort.TEXT):
            if wanted is not Sort.INT:
                raise Fault(f"index of type {wanted.value}; expected int")
            data = encode(value) if found is Sort.TEXT else value
            if not 0 <= key < len(data):
                raise Fault(f"index out of range: {key}; expected less than {len(data)}")
            path = f"{path}[{key}]"
            value = data[key]
        elif found is Sort.NIL:
            raise Fault("index of nil; expected a list, map or text")
        else:
            raise Fault(f"index of a value of type {found.value}; expected a list, map or text")
    return value


def length(value: Value) -> int:
    found = sort(value)
    if found is Sort.TEXT:
        return size(value)
    if found in (Sort.LIST, Sort.MAP):
        return len(value)
    raise Fault(f"len of a value of type {found.value}; expected a list, map or text")
