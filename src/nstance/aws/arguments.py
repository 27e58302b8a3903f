"""Fields of RunInstances as users write them: checked by AWS's own model, and turned into form parameters.

Faults are found before any instance is created, each with its path and, where a name is misspelled, the names it could be.
"""

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from nstance.clouds import arguments as clouds
from nstance.clouds.arguments import Checks, Fault, Path, is_of

# By name of the field: its name on the wire and its type (see `clouds.arguments`). Written by scripts/aws_fields.py.
RUN_INSTANCES: Mapping[str, Any] = json.loads(
    resources.files("nstance.aws").joinpath("run_instances.json").read_bytes()
)
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


_SPOT_TYPE = ("InstanceMarketOptions", "SpotOptions", "SpotInstanceType")


def find_faults(args: Mapping[str, object]) -> Iterator[Fault]:
    """Paths are below `args`."""
    yield from _structure(args, RUN_INSTANCES, ())
    yield from find_persistent_request(args)


def find_persistent_request(args: Mapping[str, object]) -> Iterator[Fault]:
    """EC2 would create the instance again after its end, without our tags: a VM that nobody knows."""
    value: object = args
    for name in _SPOT_TYPE:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, str) and value != "one-time" and "{{" not in value:
        why = "EC2 creates the instance of a persistent request again after Nstance has deleted it"
        yield Fault(_SPOT_TYPE, f"expected one-time, found {value!r}: {why}")


def _structure(given: Mapping[str, object], fields: Mapping[str, Any], path: Path) -> Iterator[Fault]:
    for name, value in given.items():
        if name not in fields:
            owner = f"{'.'.join(map(str, path))} of RunInstances" if path else "RunInstances"
            yield Fault((*path, name), f"expected a field of {owner}", sorted(fields))
        else:
            yield from clouds.find_faults(value, fields[name][1], (*path, name), _CHECKS)


def _scalar(value: object, kind: str) -> str:
    expected, types = _SCALARS.get(kind, ("a string", (str,)))
    return "" if is_of(value, types) else expected


_CHECKS = Checks(_structure, _scalar)


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
