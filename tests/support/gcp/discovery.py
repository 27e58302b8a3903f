"""Google's published descriptions of its APIs: which requests are valid, and what replies may contain.

They ship in the package google-api-python-client. Only its files are read; the package itself is never imported.
"""

import functools
import importlib.util
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = Any
_VARIABLE = re.compile(r"{\+?(\w+)}")
_SCALARS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


@functools.cache
def load(name: str) -> Json:
    """The document of an API, as in `compute.v1`."""
    found = importlib.util.find_spec("googleapiclient")
    assert found is not None, "google-api-python-client is missing: run 'make tools'"
    assert found.submodule_search_locations is not None
    folder = Path(found.submodule_search_locations[0])
    return json.loads((folder / "discovery_cache" / "documents" / f"{name}.json").read_bytes())


@dataclass(frozen=True, slots=True)
class Route:
    """One method of an API, and where it is reached."""

    api: "Api"
    id: str
    verb: str
    pattern: re.Pattern[str]
    spec: Json
    is_upload: bool = False

    def query_faults(self, query: Mapping[str, list[str]]) -> Iterator[str]:
        known = {**self.api.document.get("parameters", {}), **self.spec.get("parameters", {})}
        for name, values in query.items():
            spec = known.get(name)
            if spec is None or (name in self.spec.get("parameters", {}) and spec["location"] != "query"):
                yield f"{self.id}: there is no parameter {name}"
                continue
            if len(values) > 1 and not spec.get("repeated"):
                yield f"{self.id}: the parameter {name} is given {len(values)} times"
            for value in values:
                if "enum" in spec and value not in spec["enum"]:
                    yield f"{self.id}: {value!r} is no value of {name}"
                if spec["type"] == "boolean" and value not in ("true", "false"):
                    yield f"{self.id}: {value!r} is no boolean, for {name}"
                if spec["type"] == "integer" and not re.fullmatch(r"-?\d+", value):
                    yield f"{self.id}: {value!r} is no number, for {name}"
        for name, spec in self.spec.get("parameters", {}).items():
            if spec.get("required") and spec["location"] == "query" and name not in query:
                yield f"{self.id}: the parameter {name} is missing"

    def body_faults(self, body: Json) -> Iterator[str]:
        if "request" not in self.spec:
            if body is not None and not self.is_upload:
                yield f"{self.id}: takes no body"
        elif not self.is_upload:
            yield from self.api.faults(body or {}, self.spec["request"], self.id)

    def reply_faults(self, reply: Json) -> Iterator[str]:
        if "response" in self.spec:
            yield from self.api.faults(reply, self.spec["response"], f"reply of {self.id}", is_reply=True)
        elif reply:
            yield f"{self.id}: replies nothing"


class Api:
    def __init__(self, name: str) -> None:
        self.document = load(name)
        self._methods: dict[str, Json] = dict(_methods(self.document))

    def route(self, id: str) -> list[Route]:
        """All ways to reach a method. An unknown ID is a KeyError: the API has no such method."""
        spec = self._methods[id]
        base = "/" + self.document["servicePath"]
        found = [Route(self, id, spec["httpMethod"], _pattern(base + spec.get("flatPath", spec["path"])), spec)]
        for protocol, upload in spec.get("mediaUpload", {}).get("protocols", {}).items():
            if protocol == "simple":
                found.append(Route(self, id, spec["httpMethod"], _pattern(upload["path"]), spec, is_upload=True))
        return found

    def faults(self, value: Json, spec: Json, path: str, *, is_reply: bool = False) -> Iterator[str]:
        if "$ref" in spec:
            spec = {**self.document["schemas"][spec["$ref"]], "readOnly": spec.get("readOnly")}
        kind = spec.get("type", "any")
        if not is_reply and spec.get("readOnly"):
            return  # the API ignores it
        if kind == "any":
            return
        if kind == "object":
            yield from self._object_faults(value, spec, path, is_reply)
        elif kind == "array":
            if not isinstance(value, list):
                yield f"{path}: expected a list, found {value!r:.60}"
                return
            for number, entry in enumerate(value):
                yield from self.faults(entry, spec["items"], f"{path}[{number}]", is_reply=is_reply)
        elif not isinstance(value, _SCALARS[kind]) or (isinstance(value, bool) and kind != "boolean"):
            # Numbers of 64 bits are strings; requests may have them as numbers.
            if not (kind == "string" and spec.get("format") in ("int64", "uint64") and isinstance(value, int)):
                yield f"{path}: expected a {kind}, found {value!r:.60}"
        elif "enum" in spec and value not in spec["enum"]:
            yield f"{path}: {value!r} is none of {', '.join(spec['enum'])}"

    def _object_faults(self, value: Json, spec: Json, path: str, is_reply: bool) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{path}: expected an object, found {value!r:.60}"
            return
        for name, entry in value.items():
            below = spec.get("properties", {}).get(name) or spec.get("additionalProperties")
            if below is None:
                yield f"{path}.{name}: there is no such field"
            else:
                yield from self.faults(entry, below, f"{path}.{name}", is_reply=is_reply)


def _methods(resource: Json) -> Iterator[tuple[str, Json]]:
    for method in resource.get("methods", {}).values():
        yield method["id"], method
    for child in resource.get("resources", {}).values():
        yield from _methods(child)


def _pattern(path: str) -> re.Pattern[str]:
    """Of a quoted path: a slash within a variable is quoted."""
    parts = [
        f"(?P<{part}>[^/:]+)" if number % 2 else re.escape(part) for number, part in enumerate(_VARIABLE.split(path))
    ]
    return re.compile("".join(parts))


def unquoted(match: re.Match[str]) -> dict[str, str]:
    return {name: urllib.parse.unquote(value) for name, value in match.groupdict().items()}
