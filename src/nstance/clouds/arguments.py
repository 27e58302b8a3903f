"""Arguments of a VM as users write them, checked against the cloud's own description before anything is created.

A description is a dictionary of fields, a list with the description of its entries, or the name of a scalar type.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """`known`: the names that would have been valid, if a name is not."""

    path: Path
    message: str
    known: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Checks:
    """How a cloud checks what differs: the fields of an object, and a scalar (empty, or what was expected)."""

    fields: Callable[[Mapping[str, object], Mapping[str, Any], Path], Iterator[Fault]]
    scalar: Callable[[object, str], str]


def find_faults(value: object, kind: Any, path: Path, checks: Checks) -> Iterator[Fault]:
    """A string with a template in it can become anything, and null is not sent."""
    if value is None or (isinstance(value, str) and "{{" in value):
        return
    if isinstance(kind, dict):
        if isinstance(value, Mapping):
            yield from checks.fields(value, kind, path)
        else:
            yield Fault(path, f"expected an object, found {describe(value)}")
    elif isinstance(kind, list):
        if isinstance(value, list | tuple):
            for number, entry in enumerate(value):
                yield from find_faults(entry, kind[0], (*path, number), checks)
        else:
            yield Fault(path, f"expected a list, found {describe(value)}")
    elif expected := checks.scalar(value, kind):
        yield Fault(path, f"expected {expected}, found {describe(value)}")


def is_of(value: object, types: tuple[type, ...]) -> bool:
    """A flag is no number."""
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def describe(value: object) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return repr(value)[:60]
