"""HTTP on one side, the API server's verbs on the other."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from nstance import clock as clocks
from nstance.dev.k8s import discovery, negotiation, openapi, paths, reviews, tables
from nstance.dev.k8s.files import Files
from nstance.dev.k8s.negotiation import Form
from nstance.dev.k8s.streams import LONGEST, Question, Streams
from nstance.kube.api import metadata, selectors, status, values
from nstance.kube.api.keeper import Propagation
from nstance.kube.api.resources import Served
from nstance.kube.api.server import Options
from nstance.kube.port import Object, Patch

log = logging.getLogger(__name__)

LIMIT = 3 * 1024 * 1024  # bytes of a body
_PATIENCE = 16 * LIMIT  # bytes of one that is too long and read nevertheless
_VERSION = {
    "major": "1",
    "minor": "32",
    "gitVersion": "v1.32.0-nstance-dev",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
_PLAIN_PATHS = ("/healthz", "/livez", "/readyz")


class Service:
    def __init__(self, files: Files, clock: clocks.Clock) -> None:
        self._files = files
        self._api = files.api
        self._clock = clock
        self.streams = Streams(files.api, clock)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await self._answer(request)
        except status.ApiError as refused:
            headers = {"Retry-After": str(refused.retry_after)} if refused.retry_after else {}
            response = _json(refused.document(), code=refused.code, headers=headers)
        except OSError as problem:
            log.error("object could not be kept", extra={"path": request.path, "problem": str(problem)})
            response = _json(status.internal(f"the object could not be kept: {problem}").document(), code=500)
        log.debug("request", extra={"method": request.method, "path": request.path_qs, "code": response.status})
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.rstrip("/") or "/"
        named = paths.target(path)
        if named is None:
            return self._about(request, path)
        raw = await _body(request)
        review = next(
            (each for each in discovery.REVIEWS if each[:3] == (named.group, named.version, named.plural)), None
        )
        if review is not None:
            if request.method != "POST":
                raise status.method_not_allowed(named.group, named.plural, request.method)
            return _json(reviews.answer(review[3], _decoded(request, raw)), code=201)
        call = _Call(request, raw, named, self._api.served(named.group, named.version, named.plural))
        if not call.served.resource.namespaced and named.namespace:
            raise status.no_such_path()
        if named.name:
            self._files.look_at(call.served, named.namespace, named.name)
        if call.watches:
            return await self.streams.answer(request, call.question())
        return self._carry_out(call)

    def _about(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """What is no object: health, versions, discovery, OpenAPI."""
        if request.method not in ("GET", "HEAD"):
            raise status.method_not_allowed("", path, request.method)
        registry, accept = self._api.registry, request.headers.get("Accept", "")
        if path.startswith(_PLAIN_PATHS):
            return web.Response(text="ok")
        if path == "/version":
            return _json(_VERSION)
        if path == "/openapi/v2":
            return web.Response(
                body=openapi.version_2(),
                headers={"Content-Type": "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"},
            )
        if path == "/openapi/v3":
            return _json(openapi.index(registry))
        if path.startswith("/openapi/v3/"):
            wanted = path.removeprefix("/openapi/v3/")
            if wanted not in openapi.index(registry)["paths"]:
                raise status.no_such_path()
            return _json(openapi.document(registry, wanted))
        form = negotiation.discovery_version(accept)
        if path in ("/api", "/apis") and form:
            media = f"application/json;g=apidiscovery.k8s.io;v={form};as=APIGroupDiscoveryList"
            return _json(discovery.aggregated(registry, core=path == "/api", form=form), media=media)
        if path == "/":
            return _json({"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]})
        if path.startswith("/api"):
            return _json(discovery.legacy(registry, path))
        raise status.no_such_path()

    def _carry_out(self, call: "_Call") -> web.StreamResponse:
        named = call.named
        if named.subresource not in ("", "status", "scale"):
            return self._special(call)
        if named.name:
            act = {"GET": self._get, "HEAD": self._get, "PUT": self._put, "PATCH": self._patch, "DELETE": self._delete}
        else:
            act = {"GET": self._list, "HEAD": self._list, "POST": self._create, "DELETE": self._delete_all}
        if call.method not in act or (named.subresource and call.method == "DELETE"):
            raise status.method_not_allowed(named.group, named.plural, call.method)
        return act[call.method](call)

    def _get(self, call: "_Call") -> web.StreamResponse:
        named = call.named
        found = self._api.get(call.served, named.name, namespace=named.namespace, subresource=named.subresource)
        return self._shown(call, found)

    def _list(self, call: "_Call") -> web.StreamResponse:
        limit, rest = call.number("limit"), call.query.get("continue", "")
        page = self._api.list(
            call.served, namespace=call.named.namespace, selector=call.selector(), limit=limit, rest=rest
        )
        meta: Object = {"resourceVersion": page.version}
        if page.rest:
            meta |= {"continue": page.rest, "remainingItemCount": page.remaining}
        form = negotiation.form(call.accept)
        if form is Form.TABLE:
            return _json(self._table(call, page.items, meta))
        kind, version, items = f"{call.served.resource.kind}List", call.served.api_version, page.items
        if form is Form.METADATA:
            kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
            items = [tables.metadata(each) for each in items]
        return _json({"kind": kind, "apiVersion": version, "metadata": meta, "items": items})

    def _create(self, call: "_Call") -> web.StreamResponse:
        body = _decoded(call.request, call.raw)
        name = values.at(body, ("metadata", "name"))
        if isinstance(name, str) and name:
            self._files.look_at(call.served, call.named.namespace, name)
        made = self._api.create(call.served, body, namespace=call.named.namespace, options=call.options())
        return self._shown(call, made, code=201)

    def _put(self, call: "_Call") -> web.StreamResponse:
        named = call.named
        changed = self._api.replace(
            call.served,
            named.name,
            _decoded(call.request, call.raw),
            namespace=named.namespace,
            subresource=named.subresource,
            options=call.options(),
        )
        return self._shown(call, changed)

    def _patch(self, call: "_Call") -> web.StreamResponse:
        named = call.named
        media = call.request.content_type
        try:
            how = Patch(media)
        except ValueError:
            raise status.unsupported_media(media, [each.value for each in Patch]) from None
        before = self._api.store.version
        changed = self._api.patch(
            call.served,
            named.name,
            negotiation.body(call.raw, media),
            how=how,
            namespace=named.namespace,
            subresource=named.subresource,
            options=call.options(),
        )
        meta = changed["metadata"]
        made = how is Patch.APPLY and meta.get("generation", 1) == 1 and meta.get("resourceVersion") == str(before + 1)
        return self._shown(call, changed, code=201 if made else 200)

    def _delete(self, call: "_Call") -> web.StreamResponse:
        named, wish = call.named, call.deletion()
        conditions = wish.get("preconditions") or {}
        last, gone = self._api.delete(
            call.served,
            named.name,
            namespace=named.namespace,
            uid=str(conditions.get("uid") or ""),
            version=str(conditions.get("resourceVersion") or ""),
            propagation=_propagation(wish),
            dry_run=bool(wish.get("dryRun")),
        )
        resource = call.served.resource
        if not gone or resource.id == "pods":
            return self._shown(call, last)
        uid = last["metadata"]["uid"]
        return _json(status.success(group=resource.group, plural=resource.plural, name=named.name, uid=uid))

    def _delete_all(self, call: "_Call") -> web.StreamResponse:
        wish = call.deletion()
        page = self._api.list(call.served, namespace=call.named.namespace, selector=call.selector())
        for each in page.items:
            meta = each["metadata"]
            space = meta.get("namespace", "")
            if call.served.resource.id != "namespaces" or not wish.get("dryRun"):
                self._api.delete(
                    call.served,
                    meta["name"],
                    namespace=space,
                    propagation=_propagation(wish),
                    dry_run=bool(wish.get("dryRun")),
                )
        kind = f"{call.served.resource.kind}List"
        meta = {"resourceVersion": str(self._api.store.version)}
        return _json({"kind": kind, "apiVersion": call.served.api_version, "metadata": meta, "items": page.items})

    def _special(self, call: "_Call") -> web.StreamResponse:
        named = call.named
        what = (call.served.resource.id, named.subresource)
        if what not in (("pods", "eviction"), ("serviceaccounts", "token")):
            raise status.no_such_path()
        if call.method != "POST":
            raise status.method_not_allowed(named.group, named.plural, call.method)
        body = _decoded(call.request, call.raw)
        if not isinstance(body, dict):
            raise status.bad_request("expected an object")
        if named.subresource == "eviction":
            wish = body.get("deleteOptions") or {}
            conditions = wish.get("preconditions") or {}
            self._api.evict(
                named.name,
                namespace=named.namespace,
                uid=str(conditions.get("uid") or ""),
                version=str(conditions.get("resourceVersion") or ""),
                dry_run=bool(wish.get("dryRun")) or call.dry_run,
            )
            return _json(
                {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, code=201
            )
        spec = body.get("spec") or {}
        seconds = spec.get("expirationSeconds") or 3600
        if isinstance(seconds, bool) or not isinstance(seconds, int):
            raise status.bad_request("spec.expirationSeconds: expected a number")
        audiences = [str(each) for each in spec.get("audiences") or ()]
        token, expires = self._api.token(named.name, namespace=named.namespace, seconds=seconds, audiences=audiences)
        told = {"token": token, "expirationTimestamp": metadata.timestamp(expires)}
        meta = {"name": named.name, "namespace": named.namespace}
        answer = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": meta, "spec": spec}
        return _json({**answer, "status": told}, code=201)

    def _shown(self, call: "_Call", body: Object, code: int = 200) -> web.StreamResponse:
        form = Form.OBJECT if call.named.subresource == "scale" else negotiation.form(call.accept)
        if form is Form.TABLE:
            meta = {"resourceVersion": body["metadata"].get("resourceVersion", "")}
            return _json(self._table(call, [body], meta), code=code)
        return _json(tables.metadata(body) if form is Form.METADATA else body, code=code)

    def _table(self, call: "_Call", items: list[Object], meta: Object) -> Object:
        return tables.table(call.served, items, meta=meta, now=self._clock.wall(), include=call.include)


class _Call:
    """A request for objects: what it names, and how it wants it."""

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
        body = _decoded(self.request, self.raw) if self.raw.strip() else {}
        if not isinstance(body, dict):
            raise status.bad_request("expected an object of kind DeleteOptions")
        asked = {name: self.query[name] for name in ("propagationPolicy", "orphanDependents") if name in self.query}
        return {**asked, **({"dryRun": ["All"]} if self.dry_run else {}), **body}


def _propagation(wish: Object) -> Propagation:
    if wish.get("orphanDependents") in (True, "true"):
        return Propagation.ORPHAN
    asked = wish.get("propagationPolicy") or Propagation.BACKGROUND
    try:
        return Propagation(asked)
    except ValueError:
        listed = ", ".join(f'"{each}"' for each in Propagation)
        raise status.bad_request(f'invalid propagationPolicy "{asked}"; supported values: {listed}') from None


async def _body(request: web.BaseRequest) -> bytes:
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


def _decoded(request: web.BaseRequest, raw: bytes) -> Any:
    return negotiation.body(raw, request.headers.get("Content-Type", "application/json"))


def _json(
    body: Any, *, code: int = 200, media: str = "application/json", headers: Mapping[str, str] | None = None
) -> web.Response:
    raw = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    return web.Response(body=raw, status=code, headers={"Content-Type": media, **(headers or {})})
