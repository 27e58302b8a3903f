"""Arguments of an instance as users write them: checked by Google's own description, and turned into a request.

Names are the fields of an instance, spelled LikeThis. A few short ones stand for fields deep inside. Faults are found
before any instance is created, each with its path and, where a name is misspelled, the names it could be.
"""

import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from nstance.clouds import arguments as clouds
from nstance.clouds.arguments import Checks, Fault, Path, is_of

# By name of the field: its type (see `clouds.arguments`); `*` stands for any name. Written by scripts/gcp_fields.py.
INSTANCE: Mapping[str, Any] = json.loads(resources.files("nstance.gcp").joinpath("instance_fields.json").read_bytes())
SHORT: Mapping[str, Any] = {
    "sourceImage": "string",
    "diskSizeGb": "int64",
    "diskType": "string",
    "serviceAccount": "string",
    "scopes": ["string"],
    "networkTags": ["string"],
    "preemptible": "boolean",
    "provisioningModel": "string",
    "metadata": {"*": "string"},  # instead of a list of keys and values
}
FIELDS: Mapping[str, Any] = {**INSTANCE, **SHORT}
_LONG = ("int64", "uint64")  # which Google writes as text
_LABEL_NAME, _LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}"), re.compile(r"[\w-]{0,63}")
_PATTERNS: Mapping[str, tuple[str, re.Pattern[str]]] = {
    "diskSizeGb": ("a size in GB", re.compile(r"[1-9][0-9]{0,6}")),
    "networkTags": (
        "lower-case letters, digits and - in a network tag",
        re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"),
    ),
    "provisioningModel": (
        "SPOT, STANDARD, FLEX_START or RESERVATION_BOUND",
        re.compile(r"SPOT|STANDARD|FLEX_START|RESERVATION_BOUND"),
    ),
    "serviceAccount": ("default or an e-mail address", re.compile(r"default|[^\s@]+@[^\s@]+")),
}
_SCALARS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "string": ("a string", (str,)),
    "integer": ("a whole number", (int,)),
    "int64": ("a whole number", (int, str)),
    "uint64": ("a whole number", (int, str)),
    "number": ("a number", (int, float)),
    "boolean": ("true or false", (bool,)),
}


def find_faults(args: Mapping[str, object]) -> Iterator[Fault]:
    """Paths are below `args`."""
    found = list(_structure(args, FIELDS, ()))
    return iter(found or _of_short_names(args))


def _of_short_names(args: Mapping[str, object]) -> Iterator[Fault]:
    """Their values are of the right type."""
    for name, value in args.items():
        if value is None or _camel(name) not in _PATTERNS:
            continue
        expected, pattern = _PATTERNS[_camel(name)]
        for number, entry in enumerate(value if isinstance(value, list | tuple) else [value]):
            if "{{" not in str(entry) and pattern.fullmatch(str(entry)) is None:
                path: Path = (name, number) if isinstance(value, list | tuple) else (name,)
                yield Fault(path, f"expected {expected}, found {clouds.describe(entry)}")


def _structure(given: Mapping[str, object], fields: Mapping[str, Any], path: Path) -> Iterator[Fault]:
    for name, value in given.items():
        if "*" in fields:
            if path[-1] in ("Labels", "labels") and isinstance(value, str) and not _is_label(name, value):
                yield Fault((*path, name), f"expected lower-case letters, digits, _ and - in a label, found {value!r}")
            yield from clouds.find_faults(value, fields["*"], (*path, name), _CHECKS)
        elif _camel(name) not in fields:
            owner = f"{'.'.join(map(str, path))} of an instance" if path else "an instance"
            yield Fault((*path, name), f"expected a field of {owner}", sorted(map(_pascal, fields)))
        else:
            yield from clouds.find_faults(value, fields[_camel(name)], (*path, name), _CHECKS)


def _scalar(value: object, kind: str) -> str:
    if kind == "any":
        return ""
    expected, types = _SCALARS[kind]
    is_number = kind not in _LONG or not isinstance(value, str) or value.isdecimal()
    return "" if is_of(value, types) and is_number else expected


_CHECKS = Checks(_structure, _scalar)


def _is_label(name: str, value: str) -> bool:
    is_value = "{{" in value or (_LABEL.fullmatch(value) is not None and value == value.lower())
    return is_value and _LABEL_NAME.fullmatch(name) is not None


def resource(args: Mapping[str, object], fields: Mapping[str, Any] = FIELDS) -> dict[str, Any]:
    """The same with the names that Google uses. What is no field is left out."""
    return {
        _camel(name): _converted(value, fields[_camel(name)])
        for name, value in args.items()
        if _camel(name) in fields and value is not None
    }


def _converted(value: object, kind: Any) -> object:
    if isinstance(kind, dict) and isinstance(value, Mapping):
        return dict(value) if "*" in kind else resource(value, kind)
    if isinstance(kind, list) and isinstance(value, list | tuple):
        return [_converted(entry, kind[0]) for entry in value]
    return str(value) if kind in _LONG else value


def _camel(name: str) -> str:
    return name[:1].lower() + name[1:]


def _pascal(name: str) -> str:
    return name[:1].upper() + name[1:]
