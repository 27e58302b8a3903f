"""A request for objects: what it names, and how it wants it."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from nstance.dev.k8s import negotiation, paths
from nstance.dev.k8s.streams import LONGEST, Question
from nstance.kube.api import selectors, status
from nstance.kube.api.cascade import Propagation
from nstance.kube.api.resources import Served
from nstance.kube.api.server import Options
from nstance.kube.port import Object

LIMIT = 3 * 1024 * 1024  # bytes of a body
_PATIENCE = 16 * LIMIT  # bytes of one that is too long and read nevertheless


class Call:
    def __init__(self, request: web.BaseRequest, raw: bytes, named: paths.Target, served: Served) -> None:
        self.request = request
        self.raw = raw
        self.named = named
        self.served = served
        self.method = request.method
        self.query: Mapping[str, str] = request.query
        self.accept = request.headers.get("Accept", "")

    @property
    def watches(self) -> bool:
        return self.method == "GET" and not self.named.subresource and self.query.get("watch", "") in ("1", "true")

    @property
    def include(self) -> str:
        return self.query.get("includeObject") or "Metadata"

    @property
    def dry_run(self) -> bool:
        wanted = self.query.get("dryRun", "")
        if wanted not in ("", "All"):
            raise status.bad_request(f'invalid dryRun "{wanted}"; supported values: "All"')
        return bool(wanted)

    def number(self, name: str) -> int:
        text = self.query.get(name, "") or "0"
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise status.bad_request(f"{name}: expected a number, found {text!r}")
        return int(text)

    def options(self) -> Options:
        strict = self.query.get("fieldValidation") == "Strict"
        return Options(dry_run=self.dry_run, strict=strict, manager=self.query.get("fieldManager", ""))

    def selector(self) -> selectors.Selector:
        fields = self.query.get("fieldSelector", "")
        if self.named.name:  # a watch on one object
            fields = f"metadata.name={self.named.name}"
        selectable = self.served.version.fields
        return selectors.parse(labels=self.query.get("labelSelector", ""), fields=fields, selectable=selectable)

    def question(self) -> Question:
        return Question(
            self.served,
            self.named.namespace,
            self.selector(),
            self.query.get("resourceVersion", ""),
            min(float(self.number("timeoutSeconds") or LONGEST), LONGEST),
            self.query.get("allowWatchBookmarks", "") in ("1", "true"),
            self.query.get("sendInitialEvents", "") in ("1", "true"),
            negotiation.form(self.accept),
            self.include,
        )

    def deletion(self) -> Object:
        """DeleteOptions, from the body or the query."""
        body = decoded(self.request, self.raw) if self.raw.strip() else {}
        if not isinstance(body, dict):
            raise status.bad_request("expected an object of kind DeleteOptions")
        asked = {name: self.query[name] for name in ("propagationPolicy", "orphanDependents") if name in self.query}
        return {**asked, **({"dryRun": ["All"]} if self.dry_run else {}), **body}


def propagation(desired: Object) -> Propagation:
    if desired.get("orphanDependents") in (True, "true"):
        return Propagation.ORPHAN
    asked = desired.get("propagationPolicy") or Propagation.BACKGROUND
    try:
        return Propagation(asked)
    except ValueError:
        listed = ", ".join(f'"{each}"' for each in Propagation)
        raise status.bad_request(f'invalid propagationPolicy "{asked}"; supported values: {listed}') from None


def part(body: Object, name: str) -> Object:
    """An object inside of another one, or an empty one."""
    found = body.get(name) or {}
    if not isinstance(found, dict):
        raise status.bad_request(f"{name}: expected an object")
    return found


async def read_body(request: web.BaseRequest) -> bytes:
    """Read to its end also when it is too long: a client that is cut off while it sends does not read the answer."""
    kept, size = [], 0
    async for chunk in request.content.iter_chunked(2**16):
        size += len(chunk)
        if size <= LIMIT:
            kept.append(chunk)
        elif size > _PATIENCE:
            break
    if size > LIMIT:
        raise status.ApiError(413, "RequestEntityTooLarge", f"limit is {LIMIT} bytes")
    return b"".join(kept)


def decoded(request: web.BaseRequest, raw: bytes) -> Any:
    return negotiation.body(raw, request.headers.get("Content-Type", "application/json"))
