"""Content negotiation: parses request bodies, and finds the form of the response.

Bodies may be JSON, YAML or protobuf; responses are JSON: whole objects, or tables.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import yaml

from nstance.dev.k8s import protobuf
from nstance.kube.api import status

_JSON, _YAML = "application/json", "application/yaml"
_PROTOBUF = "application/vnd.kubernetes.protobuf"
_MAX_DEPTH = 100
_MIN_NODES = 10_000
_TAG_ERRORS = (ValueError, LookupError, TypeError, AttributeError)  # PyYAML raises them for `!!int x` and the like


def wants_table(accept: str) -> bool:
    """Whether the first supported form is a table, which kubectl prints."""
    for media, options in _accepted(accept):
        if media in (_JSON, "*/*", "application/*", _YAML):
            if "as" not in options:
                return False
            if (options["as"], options.get("g"), options.get("v")) == ("Table", "meta.k8s.io", "v1"):
                return True
    return False


def discovery_version(accept: str) -> str:
    """The first requested version of aggregated discovery; empty: none."""
    for media, options in _accepted(accept):
        if media == _JSON and options.get("g") == "apidiscovery.k8s.io" and options.get("v") in ("v2", "v2beta1"):
            return options["v"]
    return ""


def _accepted(accept: str) -> Iterator[tuple[str, dict[str, str]]]:
    for each in accept.split(","):
        media, *rest = (part.strip() for part in each.split(";"))
        yield media, dict(part.partition("=")[::2] for part in rest)


class _Loader(yaml.SafeLoader):
    """YAML as in Kubernetes: a time is a string."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_body(raw: bytes, media: str) -> Any:
    """Raises 400 with the place of the error, 415 for unsupported types."""
    media = media.partition(";")[0].strip()
    if media == _PROTOBUF:
        try:
            return protobuf.decode(raw)
        except (protobuf.ProtobufError, UnicodeDecodeError) as problem:
            raise status.unsupported_media(f"{media}: {problem}", (_JSON, _YAML)) from None
    try:
        if "yaml" in media and raw.lstrip()[:1] != b"{":
            document = yaml.load(raw, _Loader)
        else:
            document = json.loads(raw, parse_constant=_no_constant)
        _check_json(document, nodes=max(_MIN_NODES, len(raw)))
    except (RecursionError, yaml.YAMLError, *_TAG_ERRORS) as problem:
        raise status.bad_request(f"the object provided is unrecognized: {' '.join(str(problem).split())}") from None
    return document


def _check_json(value: Any, *, nodes: int) -> None:
    """Checks types, depth and size: YAML aliases can turn a line into gigabytes, or into a value that contains itself.
    Raises ValueError."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        children: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                children += each.keys()
                children += each.values()
            elif isinstance(each, list):
                children += each
            elif isinstance(each, str):
                each.encode()
            elif isinstance(each, float) and not math.isfinite(each):
                raise ValueError(f"{each} is not JSON")
            elif each is not None and not isinstance(each, bool | int | float):
                raise ValueError(f"a {type(each).__name__} is not JSON")
        nodes -= len(children)
        if nodes < 0:
            raise ValueError("its aliases make it much larger than it was sent")
        if not children:
            return
        level = children
    raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
