"""Fields of RunInstances as users write them: checked by AWS's own model, and turned into form parameters.

Faults are found before any instance is created, each with its path and, where a name is misspelled, the names it could be.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nstance.aws.run_instances import RUN_INSTANCES

_SCALARS: dict[str, tuple[str, tuple[type, ...]]] = {
    "string": ("a string", (str,)),
    "integer": ("a whole number", (int,)),
    "long": ("a whole number", (int,)),
    "double": ("a number", (int, float)),
    "float": ("a number", (int, float)),
    "boolean": ("true or false", (bool,)),
    "timestamp": ("a time", (str,)),
    "blob": ("a string", (str,)),
}

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """`known`: the names that would have been valid, if a name is not."""

    path: Path
    message: str
    known: Sequence[str] = ()


def find_faults(args: Mapping[str, object]) -> Iterator[Fault]:
    """Paths are below `args`. A string with a template in it can become anything, and null is not sent."""
    return _structure(args, RUN_INSTANCES, ())


def _structure(given: Mapping[str, object], fields: Mapping[str, Any], path: Path) -> Iterator[Fault]:
    for name, value in given.items():
        if name not in fields:
            owner = f"{'.'.join(map(str, path))} of RunInstances" if path else "RunInstances"
            yield Fault((*path, name), f"expected a field of {owner}", sorted(fields))
        else:
            yield from _value(value, fields[name][1], (*path, name))


def _value(value: object, kind: Any, path: Path) -> Iterator[Fault]:
    if value is None or (isinstance(value, str) and "{{" in value):
        return
    if isinstance(kind, dict):
        if isinstance(value, Mapping):
            yield from _structure(value, kind, path)
        else:
            yield Fault(path, f"expected an object, found {_shown(value)}")
    elif isinstance(kind, list):
        if isinstance(value, list | tuple):
            for number, entry in enumerate(value):
                yield from _value(entry, kind[0], (*path, number))
        else:
            yield Fault(path, f"expected a list, found {_shown(value)}")
    else:
        expected, types = _SCALARS.get(kind, ("a string", (str,)))
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            yield Fault(path, f"expected {expected}, found {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return repr(value)[:60]


def parameters(args: Mapping[str, object], fields: Mapping[str, Any] = RUN_INSTANCES) -> dict[str, object]:
    """The same with the names that EC2 uses in form parameters. What is no field is left out."""
    return {fields[name][0]: _parameter(value, fields[name][1]) for name, value in args.items() if name in fields}


def _parameter(value: object, kind: Any) -> object:
    if isinstance(kind, dict) and isinstance(value, Mapping):
        return parameters(value, kind)
    if isinstance(kind, list) and isinstance(value, list | tuple):
        return [_parameter(entry, kind[0]) for entry in value]
    return value


def merge(args: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, Any]:
    """`args` over defaults, structure by structure."""
    out: dict[str, Any] = dict(defaults)
    for name, value in args.items():
        below = out.get(name)
        out[name] = merge(value, below) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return out
