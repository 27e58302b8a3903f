"""A request for objects: its target and options."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from nstance.dev.k8s import negotiation, paths
from nstance.dev.k8s.streams import MAX_WATCH_SECONDS, WatchRequest
from nstance.kube.api import schema, selectors, status
from nstance.kube.api.cascade import Propagation
from nstance.kube.api.resources import Served
from nstance.kube.api.server import Options, Target
from nstance.kube.port import Object

MAX_BODY_BYTES = 3 * 1024 * 1024
_MAX_READ_BYTES = 16 * MAX_BODY_BYTES  # of a body that is too long


class ObjectRequest:
    def __init__(self, request: web.BaseRequest, raw: bytes, target: paths.Target, served: Served) -> None:
        self.request = request
        self.raw = raw
        self.target = target
        self.served = served
        self.method = request.method
        self.query: Mapping[str, str] = request.query
        self.accept = request.headers.get("Accept", "")

    @property
    def object(self) -> Target:
        return Target(self.served, self.target.name, self.target.namespace, self.target.subresource)

    @property
    def is_watch(self) -> bool:
        return self.method == "GET" and not self.target.subresource and self.query.get("watch", "") in ("1", "true")

    @property
    def include(self) -> str:
        return self.query.get("includeObject") or "Metadata"

    @property
    def dry_run(self) -> bool:
        value = self.query.get("dryRun", "")
        if value not in ("", "All"):
            raise status.bad_request(f'invalid dryRun "{value}"; supported values: "All"')
        return bool(value)

    def number(self, name: str) -> int:
        text = self.query.get(name, "") or "0"
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise status.bad_request(f"{name}: expected a number, found {text!r}")
        return int(text)

    def options(self) -> Options:
        strict = self.query.get("fieldValidation") == "Strict"
        return Options(dry_run=self.dry_run, strict=strict, manager=self.query.get("fieldManager", ""))

    def warn(self, response: web.StreamResponse, body: Any) -> web.StreamResponse:
        """Names fields of the body that its schema does not know, unless the client wants to hear nothing of them."""
        schema_of = self.served.version.schema
        if schema_of is None or not isinstance(body, dict) or self.query.get("fieldValidation") == "Ignore":
            return response
        for each in schema.prune(body, schema_of)[1]:
            text = f'unknown field "{each}"'.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{text}"')
        return response

    def selector(self) -> selectors.Selector:
        fields = self.query.get("fieldSelector", "")
        if self.target.name:  # a watch on one object
            fields = f"metadata.name={self.target.name}"
        selectable = self.served.version.fields
        return selectors.parse(labels=self.query.get("labelSelector", ""), fields=fields, selectable=selectable)

    def watch_request(self) -> WatchRequest:
        return WatchRequest(
            self.served,
            self.target.namespace,
            self.selector(),
            self.query.get("resourceVersion", ""),
            min(float(self.number("timeoutSeconds") or MAX_WATCH_SECONDS), MAX_WATCH_SECONDS),
            self.query.get("allowWatchBookmarks", "") in ("1", "true"),
            self.query.get("sendInitialEvents", "") in ("1", "true"),
            negotiation.wants_table(self.accept),
            self.include,
        )

    def delete_options(self) -> Object:
        """DeleteOptions, from the body or the query."""
        body = decode_body(self.request, self.raw) if self.raw.strip() else {}
        if not isinstance(body, dict):
            raise status.bad_request("expected an object of kind DeleteOptions")
        query = {name: self.query[name] for name in ("propagationPolicy", "orphanDependents") if name in self.query}
        return {**query, **({"dryRun": ["All"]} if self.dry_run else {}), **body}


def propagation(options: Object) -> Propagation:
    if options.get("orphanDependents") in (True, "true"):
        return Propagation.ORPHAN
    policy = options.get("propagationPolicy") or Propagation.BACKGROUND
    try:
        return Propagation(policy)
    except ValueError:
        listed = ", ".join(f'"{each}"' for each in Propagation)
        raise status.bad_request(f'invalid propagationPolicy "{policy}"; supported values: {listed}') from None


def get_object(body: Object, name: str) -> Object:
    """A field that is an object, or an empty object."""
    found = body.get(name) or {}
    if not isinstance(found, dict):
        raise status.bad_request(f"{name}: expected an object")
    return found


async def read_body(request: web.BaseRequest) -> bytes:
    """Reads the body to its end even if it is too long, because a client that is cut off does not read the response."""
    chunks, size = [], 0
    async for chunk in request.content.iter_chunked(2**16):
        size += len(chunk)
        if size <= MAX_BODY_BYTES:
            chunks.append(chunk)
        elif size > _MAX_READ_BYTES:
            break
    if size > MAX_BODY_BYTES:
        raise status.ApiError(413, "RequestEntityTooLarge", f"limit is {MAX_BODY_BYTES} bytes")
    return b"".join(chunks)


def decode_body(request: web.BaseRequest, raw: bytes) -> Any:
    return negotiation.parse_body(raw, request.headers.get("Content-Type", "application/json"))
