"""Maps HTTP requests to the verbs of the API server."""

import json
import logging
from typing import Any

from aiohttp import web

from nstance import clock as clocks
from nstance.dev.k8s import discovery, negotiation, openapi, paths, tables
from nstance.dev.k8s.files import Files
from nstance.dev.k8s.object_request import ObjectRequest, decode_body, get_object, propagation, read_body
from nstance.dev.k8s.streams import Streams
from nstance.kube.api import metadata, status, values
from nstance.kube.api.patches import Patch
from nstance.kube.port import Object

log = logging.getLogger(__name__)

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
_HEALTH_PATHS = ("/healthz", "/livez", "/readyz")


class Service:
    def __init__(self, files: Files, clock: clocks.Clock) -> None:
        self._files = files
        self._api = files.api
        self._clock = clock
        self.streams = Streams(files.api, clock)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await self._answer(request)
        except status.ApiError as error:
            response = _json(error.document(), code=error.code)
        except OSError as problem:
            log.error("failed to store object", extra={"path": request.path, "problem": str(problem)})
            response = _json(status.internal(f"failed to store the object: {problem}").document(), code=500)
        log.debug("request", extra={"method": request.method, "path": request.path_qs, "code": response.status})
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.rstrip("/") or "/"
        target = paths.parse_path(path)
        if target is None:
            return self._about(request, path)
        raw = await read_body(request)
        call = ObjectRequest(request, raw, target, self._api.served(target.group, target.version, target.plural))
        if not call.served.resource.namespaced and target.namespace:
            raise status.no_such_path()
        if target.name:
            self._files.check_object(call.served, target.namespace, target.name)
        if call.is_watch:
            return await self.streams.answer(request, call.watch_request())
        return self._dispatch(call)

    def _about(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Paths that are not objects: health, versions, discovery, OpenAPI."""
        if request.method not in ("GET", "HEAD"):
            raise status.method_not_allowed("", path, request.method)
        registry, accept = self._api.registry, request.headers.get("Accept", "")
        if path.startswith(_HEALTH_PATHS):
            return web.Response(text="ok")
        if path == "/version":
            return _json(_VERSION)
        if path == "/openapi/v2":
            media = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
            return web.Response(body=openapi.version_2(), content_type=media)
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

    def _dispatch(self, call: ObjectRequest) -> web.StreamResponse:
        target = call.target
        if target.subresource not in ("", "status", "scale"):
            return self._subresource(call)
        if target.name:
            act = {"GET": self._get, "HEAD": self._get, "PUT": self._put, "PATCH": self._patch, "DELETE": self._delete}
        else:
            act = {"GET": self._list, "HEAD": self._list, "POST": self._create}
        if call.method not in act or (target.subresource and call.method == "DELETE"):
            raise status.method_not_allowed(target.group, target.plural, call.method)
        return act[call.method](call)

    def _get(self, call: ObjectRequest) -> web.StreamResponse:
        return self._respond(call, self._api.get(call.object))

    def _list(self, call: ObjectRequest) -> web.StreamResponse:
        limit, token = call.number("limit"), call.query.get("continue", "")
        page = self._api.list(
            call.served, namespace=call.target.namespace, selector=call.selector(), limit=limit, continue_token=token
        )
        meta: Object = {"resourceVersion": page.version}
        if page.continue_token:
            meta |= {"continue": page.continue_token, "remainingItemCount": page.remaining}
        if negotiation.wants_table(call.accept):
            return _json(self._table(call, page.items, meta))
        kind, version = f"{call.served.resource.kind}List", call.served.api_version
        return _json({"kind": kind, "apiVersion": version, "metadata": meta, "items": page.items})

    def _create(self, call: ObjectRequest) -> web.StreamResponse:
        body = decode_body(call.request, call.raw)
        name = values.at(body, ("metadata", "name"))
        if isinstance(name, str) and name:
            self._files.check_object(call.served, call.target.namespace, name)
        created = self._api.create(call.served, body, namespace=call.target.namespace, options=call.options())
        return call.warn(self._respond(call, created, code=201), body)

    def _put(self, call: ObjectRequest) -> web.StreamResponse:
        body = decode_body(call.request, call.raw)
        changed = self._api.replace(call.object, body, options=call.options())
        return call.warn(self._respond(call, changed), body)

    def _patch(self, call: ObjectRequest) -> web.StreamResponse:
        media = call.request.content_type
        try:
            how = Patch(media)
        except ValueError:
            raise status.unsupported_media(media, [each.value for each in Patch]) from None
        body = negotiation.parse_body(call.raw, media)
        before = self._api.store.version
        changed = self._api.patch(call.object, body, how=how, options=call.options())
        meta = changed["metadata"]
        was_created = (
            how is Patch.APPLY and meta.get("generation", 1) == 1 and meta.get("resourceVersion") == str(before + 1)
        )
        return call.warn(self._respond(call, changed, code=201 if was_created else 200), body)

    def _delete(self, call: ObjectRequest) -> web.StreamResponse:
        options = call.delete_options()
        conditions = get_object(options, "preconditions")
        last, gone = self._api.delete(
            call.object,
            uid=str(conditions.get("uid") or ""),
            version=str(conditions.get("resourceVersion") or ""),
            propagation=propagation(options),
            dry_run=bool(options.get("dryRun")),
        )
        resource = call.served.resource
        if not gone or resource.id == "pods":
            return self._respond(call, last)
        uid = last["metadata"]["uid"]
        return _json(status.success(group=resource.group, plural=resource.plural, name=call.target.name, uid=uid))

    def _subresource(self, call: ObjectRequest) -> web.StreamResponse:
        target = call.target
        what = (call.served.resource.id, target.subresource)
        if what not in (("pods", "eviction"), ("serviceaccounts", "token")):
            raise status.no_such_path()
        if call.method != "POST":
            raise status.method_not_allowed(target.group, target.plural, call.method)
        body = decode_body(call.request, call.raw)
        if not isinstance(body, dict):
            raise status.bad_request("expected an object")
        if target.subresource == "eviction":
            options = get_object(body, "deleteOptions")
            conditions = get_object(options, "preconditions")
            self._api.evict(
                target.name,
                namespace=target.namespace,
                uid=str(conditions.get("uid") or ""),
                version=str(conditions.get("resourceVersion") or ""),
                dry_run=bool(options.get("dryRun")) or call.dry_run,
            )
            return _json(
                {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, code=201
            )
        spec = get_object(body, "spec")
        seconds = spec.get("expirationSeconds") or 3600
        if isinstance(seconds, bool) or not isinstance(seconds, int):
            raise status.bad_request("spec.expirationSeconds: expected a number")
        audiences = spec.get("audiences") or []
        if not isinstance(audiences, list):
            raise status.bad_request("spec.audiences: expected a list")
        audiences = [str(each) for each in audiences]
        token, expires = self._api.token(target.name, namespace=target.namespace, seconds=seconds, audiences=audiences)
        token_status = {"token": token, "expirationTimestamp": metadata.timestamp(expires)}
        meta = {"name": target.name, "namespace": target.namespace}
        answer = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": meta, "spec": spec}
        return _json({**answer, "status": token_status}, code=201)

    def _respond(self, call: ObjectRequest, body: Object, code: int = 200) -> web.StreamResponse:
        if call.target.subresource != "scale" and negotiation.wants_table(call.accept):
            meta = {"resourceVersion": body["metadata"].get("resourceVersion", "")}
            return _json(self._table(call, [body], meta), code=code)
        return _json(body, code=code)

    def _table(self, call: ObjectRequest, items: list[Object], meta: Object) -> Object:
        return tables.table(call.served, items, meta=meta, now=self._clock.wall(), include=call.include)


def _json(body: Any, *, code: int = 200, media: str = "application/json") -> web.Response:
    raw = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    return web.Response(body=raw, status=code, headers={"Content-Type": media})
