"""Bodies in, and which form of an answer a client asks for.

Bodies may be JSON, YAML and protobuf; answers are JSON, which all clients read. Two forms matter: tables, which
kubectl prints as they are, and objects of which only the metadata is wanted.
"""

import json
import math
from collections.abc import Iterator
from enum import Enum
from typing import Any

import yaml

from nstance.dev.k8s import protobuf
from nstance.kube.api import status

_JSON, _YAML = "application/json", "application/yaml"
_PROTOBUF = "application/vnd.kubernetes.protobuf"
_DEEPEST = 100
_FEW = 10_000
_TAGGED = (ValueError, LookupError, TypeError, AttributeError)  # what PyYAML raises for `!!int x` and the like


class Form(Enum):
    OBJECT = "object"
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"


def form(accept: str) -> Form:
    """The first one named that is known here."""
    for media, options in _accepted(accept):
        if media not in (_JSON, "*/*", "application/*", _YAML):
            continue
        asked = options.get("as", "").removesuffix("List")
        if not asked:
            return Form.OBJECT
        if (
            options.get("g") == "meta.k8s.io"
            and options.get("v") == "v1"
            and asked in ("Table", "PartialObjectMetadata")
        ):
            return Form(asked)
    return Form.OBJECT


def discovery_version(accept: str) -> str:
    """The version of aggregated discovery that is asked for first, or nothing."""
    for media, options in _accepted(accept):
        if media == _JSON and options.get("g") == "apidiscovery.k8s.io" and options.get("v") in ("v2", "v2beta1"):
            return options["v"]
    return ""


def _accepted(accept: str) -> Iterator[tuple[str, dict[str, str]]]:
    for each in accept.split(","):
        media, *rest = (part.strip() for part in each.split(";"))
        yield media, dict(part.partition("=")[::2] for part in rest)


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes means it: a time is a string."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def body(raw: bytes, media: str) -> Any:
    """Raises 400 with the place of the fault, 415 for what cannot be read here."""
    media = media.partition(";")[0].strip()
    if media == _PROTOBUF:
        try:
            return protobuf.decoded(raw)
        except (protobuf.Unreadable, UnicodeDecodeError) as problem:
            raise status.unsupported_media(f"{media}: {problem}", (_JSON, _YAML)) from None
    try:
        if "yaml" in media and raw.lstrip()[:1] != b"{":
            read = yaml.load(raw, _Loader)
        else:
            read = json.loads(raw, parse_constant=_no_constant)
        _check_plain(read, nodes=max(_FEW, len(raw)))
    except (RecursionError, yaml.YAMLError, *_TAGGED) as problem:
        raise status.bad_request(f"the object provided is unrecognized: {' '.join(str(problem).split())}") from None
    return read


def _check_plain(value: Any, *, nodes: int) -> None:
    """Only what JSON has, not deeper than a function may look into it, and not more than was sent: aliases in YAML can
    make gigabytes of a line, or a value that holds itself. Raises ValueError."""
    level = [value]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.keys()
                below += each.values()
            elif isinstance(each, list):
                below += each
            elif isinstance(each, str):
                each.encode()
            elif isinstance(each, float) and not math.isfinite(each):
                raise ValueError(f"{each} is no JSON")
            elif each is not None and not isinstance(each, bool | int | float):
                raise ValueError(f"a {type(each).__name__} is no JSON")
        nodes -= len(below)
        if nodes < 0:
            raise ValueError("its aliases make it much larger than it was sent")
        if not below:
            return
        level = below
    raise ValueError(f"it is nested deeper than {_DEEPEST} levels")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
