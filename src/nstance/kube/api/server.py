"""The verbs of an API server, in memory.

Every verb is one synchronous step: it is applied with all its consequences, or raises `status.ApiError` and changes
nothing. Returned objects are the stored ones: copy them before changing them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nstance import clock as clocks
from nstance.kube.api import (
    budgets,
    builtin_resources,
    cascade,
    crd_objects,
    metadata,
    patches,
    scaling,
    selectors,
    status,
    stored_objects,
    strategic_merge,
    tokens,
    values,
)
from nstance.kube.api.cascade import Propagation
from nstance.kube.api.patches import Patch
from nstance.kube.api.resources import Registry, Resource, Served
from nstance.kube.api.store import Key, Sink, Store
from nstance.kube.api.watches import Watch
from nstance.kube.port import Object

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
WATCH_WINDOW = 10_000  # changes that watchers may lag behind
_UNDELETABLE_NAMESPACES = ("default", "kube-public", "kube-system")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a write."""

    dry_run: bool = False
    strict: bool = False  # reject unknown fields instead of dropping them, if there is a schema
    manager: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    items: list[Object]
    version: str
    continue_token: str = ""
    remaining: int = 0


DEFAULT_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class Target:
    """One object, or a subresource of it."""

    served: Served
    name: str
    namespace: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        return _key(self.served.resource, self.namespace, self.name)


class Api:
    def __init__(
        self,
        clock: clocks.Clock,
        rng: clocks.Rng,
        *,
        version: int = 0,
        window: int = WATCH_WINDOW,
        sink: Sink | None = None,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self.registry = Registry(builtin_resources.RESOURCES)
        self.store = Store(version=version, window=window, sink=sink)
        self._cascade = cascade.Cascade(self.store, self.registry, clock)

    def begin(self) -> None:
        """Creates the namespaces that every cluster has."""
        for name in NAMESPACES:
            self._ensure_namespace(name)

    def served(self, group: str, version: str, plural: str) -> Served:
        found = self.registry.find(group, version, plural)
        if found is None:
            raise status.no_such_path()
        return found

    def get(self, target: Target) -> Object:
        body = target.served.shown(self._get_stored(target))
        return scaling.read_scale(target.served, body) if target.subresource == "scale" else body

    def list(
        self,
        served: Served,
        *,
        namespace: str = "",
        selector: selectors.Selector = selectors.EVERYTHING,
        limit: int = 0,
        continue_token: str = "",
    ) -> Page:
        """Later pages show the version of the first page. Raises 410 if it is too old."""
        version, after = tokens.decode_continue(continue_token) if continue_token else (self.store.version, ("", ""))
        objects = self.store.as_of(version, served.resource.id)
        names = sorted(name for name in objects if (not namespace or name[0] == namespace) and name > after)
        found = [name for name in names if selector.matches(objects[name])]
        shown = found[:limit] if limit else found
        more = len(found) - len(shown)
        items = [served.shown(objects[name]) for name in shown]
        return Page(items, str(version), tokens.encode_continue(version, shown[-1]) if more else "", more)

    def watch(
        self, served: Served, version: str, *, namespace: str = "", selector: selectors.Selector = selectors.EVERYTHING
    ) -> Watch:
        """Watches after a version. Raises 400 if it is invalid, 410 if it is too old."""
        if not (version.isascii() and version.isdecimal() and len(version) < 20):
            raise status.bad_request(f'Invalid value: "{version[:40]}": resourceVersion must be a number')
        watch = Watch(self.store, served, int(version), namespace, selector)
        next(self.store.since(int(version)), None)
        return watch

    def create(self, served: Served, body: Any, *, namespace: str = "", options: Options = DEFAULT_OPTIONS) -> Object:
        resource = served.resource
        meta = metadata.decode(resource, body)
        _check_type(served, body)
        namespace = self._namespace_of(resource, meta, namespace)
        if meta.get("resourceVersion"):
            raise status.bad_request("resourceVersion should not be set on objects to be created")
        name = meta.get("name", "")
        if not name and meta.get("generateName"):
            name = metadata.generate_name(meta["generateName"], self._rng)
        own = {**meta, "name": name} | ({"namespace": namespace} if resource.namespaced else {})
        now = metadata.timestamp(self._clock.wall())
        stored = stored_objects.new_object(
            served, {**body, "metadata": own}, uid=metadata.generate_uid(self._rng), now=now, strict=options.strict
        )
        key = _key(resource, namespace, name)
        if self.store.get(key) is not None:
            raise status.already_exists(resource.group, resource.plural, name)
        self._check_namespace(resource, namespace, name)
        if resource.id == crd_objects.ID:
            stored["status"] = crd_objects.accepted_status(stored, now)
        return self._store_object(served, key, stored, options)

    def replace(self, target: Target, body: Any, *, options: Options = DEFAULT_OPTIONS) -> Object:
        served, old = target.served, self._get_stored(target)
        if target.subresource == "scale":
            return self._scale(served, old, body, options)
        meta = metadata.decode(served.resource, body)
        _check_type(served, body)
        if not meta.get("resourceVersion") and (served.resource.custom or served.resource.plural == "leases"):
            text = "Invalid value: 0x0: must be specified for an update"
            cause = status.Cause("metadata.resourceVersion", text)
            raise status.invalid(served.resource.group, served.resource.kind, target.name, [cause])
        return self._update(served, old, body, target.subresource, options)

    def patch(self, target: Target, body: Any, *, how: Patch, options: Options = DEFAULT_OPTIONS) -> Object:
        if how is Patch.APPLY:
            return self._apply(target, body, options)
        served, old = target.served, self._get_stored(target)
        shown = served.shown(old)
        if target.subresource == "scale":
            return self._scale(served, old, _patched(scaling.read_scale(served, shown), body, how), options)
        if how is Patch.STRATEGIC and served.resource.custom:
            accepted = [each.value for each in Patch if each is not Patch.STRATEGIC]
            raise status.unsupported_media(how.value, accepted)
        return self._update(served, old, _patched(shown, body, how), target.subresource, options)

    def _apply(self, target: Target, body: Any, options: Options) -> Object:
        """Server-side apply as a merge: fields of the body win, nothing is removed."""
        if not options.manager:
            raise status.bad_request("fieldManager is required for apply patch")
        if not isinstance(body, dict):
            raise status.bad_request("the body of an apply patch is an object")
        if not body.get("apiVersion") or not body.get("kind"):
            raise status.bad_request("apiVersion and kind must be set in an apply patch")
        served = target.served
        if self.store.get(target.key) is None and not target.subresource:
            own = {**metadata.decode(served.resource, body), "name": target.name}
            return self.create(served, {**body, "metadata": own}, namespace=target.namespace, options=options)
        old = self._get_stored(target)
        if target.subresource == "scale":
            scale = patches.merge_patch(scaling.read_scale(served, old), body)
            return self._scale(served, old, scale, options)
        _check_type(served, body)
        merge = patches.merge_patch if served.resource.custom else strategic_merge.merge
        return self._update(served, old, merge(served.shown(old), body), target.subresource, options)

    def delete(
        self,
        target: Target,
        *,
        uid: str = "",
        version: str = "",
        propagation: Propagation = Propagation.BACKGROUND,
        dry_run: bool = False,
    ) -> tuple[Object, bool]:
        """The last state of the object, and whether it is gone; with finalizers it stays."""
        resource, name, shown = target.served.resource, target.name, target.served.shown
        body = self._get_stored(target)
        for what, wanted, found in (
            ("UID", uid, body["metadata"]["uid"]),
            ("ResourceVersion", version, body["metadata"]["resourceVersion"]),
        ):
            if wanted and wanted != found:
                why = f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
                raise status.conflict(resource.group, resource.plural, name, why)
        if resource.id == "namespaces" and name in _UNDELETABLE_NAMESPACES:
            raise status.forbidden("", "namespaces", name, "this namespace may not be deleted")
        if dry_run:
            return shown(body), not body["metadata"].get("finalizers")
        last = self._cascade.delete(target.key, propagation)
        self._cascade.settle()
        remaining = self.store.get(target.key)
        return shown(last if remaining is None else remaining), remaining is None

    def evict(self, name: str, *, namespace: str, uid: str = "", version: str = "", dry_run: bool = False) -> None:
        pod = Target(self.served("", "v1", "pods"), name, namespace)
        refusal = budgets.refusal(self._get_stored(pod), self.store.all("poddisruptionbudgets.policy", namespace))
        if refusal is not None:
            raise refusal
        self.delete(pod, uid=uid, version=version, dry_run=dry_run)

    def token(
        self, service_account: str, *, namespace: str, seconds: int, audiences: Sequence[str] = ()
    ) -> tuple[str, float]:
        """A well-formed, unsigned token, and its expiry."""
        account = self._get_stored(Target(self.served("", "v1", "serviceaccounts"), service_account, namespace))
        if seconds < 600:
            cause = status.Cause(
                "spec.expirationSeconds", f"Invalid value: {seconds}: may not specify less than 10 minutes"
            )
            raise status.invalid("authentication.k8s.io", "TokenRequest", service_account, [cause])
        now, uid = self._clock.wall(), metadata.generate_uid(self._rng)
        return tokens.unsigned_token(account, now=int(now), seconds=seconds, audiences=audiences, uid=uid)

    def load(self, served: Served, body: Object) -> None:
        """Restores an object that was stored before, unchanged."""
        meta = body["metadata"]
        self._cascade.load(_key(served.resource, meta.get("namespace", ""), meta["name"]), body)

    def adopt(self, served: Served, name: str, body: Any, *, namespace: str = "") -> Object:
        """Stores an object that was edited outside the API, including its status. Missing metadata is filled in."""
        resource = served.resource
        meta = metadata.decode(resource, body)
        _check_type(served, body)
        if meta.get("name", name) != name or meta.get("namespace", namespace) != namespace:
            raise status.bad_request(
                f"metadata names {meta.get('namespace', '')}/{meta.get('name')}, expected {namespace}/{name}"
            )
        if resource.namespaced:
            self._ensure_namespace(namespace)
        key = _key(resource, namespace, name)
        old = self.store.get(key)
        own = {"name": name} | ({"namespace": namespace} if resource.namespaced else {})
        complete = {**body, "metadata": {**meta, **own}}
        now = metadata.timestamp(self._clock.wall())
        if old is None:
            taken = {
                each["metadata"]["uid"] for each in self.store.all(resource.id)
            }  # a copied file has the uid of another object
            uid = meta["uid"] if meta.get("uid") and meta["uid"] not in taken else metadata.generate_uid(self._rng)
            since = meta.get("creationTimestamp") or now
            stored = stored_objects.new_object(served, complete, uid=uid, now=since)
            stored["metadata"].pop("resourceVersion", None)
        else:
            kept = {
                name: value for name, value in complete["metadata"].items() if name not in ("uid", "resourceVersion")
            }
            stored = stored_objects.changed_object(served, old, {**complete, "metadata": kept})
        if "status" in body:
            stored["status"] = values.copy(body["status"])
            stored_objects.check(served, stored)
        elif resource.id == crd_objects.ID:
            stored["status"] = crd_objects.accepted_status(stored, now)
        if old is not None and values.is_same(old, stored):
            return old
        return self._store_object(served, key, stored, DEFAULT_OPTIONS)

    def _get_stored(self, target: Target) -> Object:
        body = self.store.get(target.key)
        if body is None:
            resource = target.served.resource
            raise status.not_found(resource.group, resource.plural, target.name)
        return body

    def _update(self, served: Served, old: Object, body: Any, subresource: str, options: Options) -> Object:
        if subresource == "status" and not served.version.status:
            raise status.no_such_path()
        changed = stored_objects.changed_object(served, old, body, subresource=subresource, strict=options.strict)
        if values.is_same(old, changed):
            return served.shown(old)
        meta = old["metadata"]
        return self._store_object(
            served, _key(served.resource, meta.get("namespace", ""), meta["name"]), changed, options
        )

    def _scale(self, served: Served, old: Object, scale: Any, options: Options) -> Object:
        changed = scaling.apply_scale(served, old, scale)
        return scaling.read_scale(served, self._update(served, old, changed, "", options))

    def _store_object(self, served: Served, key: Key, body: Object, options: Options) -> Object:
        if options.dry_run:
            return served.shown(body)
        stored = self._cascade.put(key, body)
        self._cascade.settle()
        return served.shown(stored)

    def _namespace_of(self, resource: Resource, meta: Object, namespace: str) -> str:
        if not resource.namespaced:
            if meta.get("namespace"):
                raise status.bad_request("namespace should not be set on a cluster-scoped object")
            return ""
        own = str(meta.get("namespace") or "")
        if own and namespace and own != namespace:
            raise status.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if not own and not namespace:
            raise status.bad_request("an empty namespace may not be set during creation")
        return own or namespace

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        found = self.store.get(Key("namespaces", "", namespace))
        if found is None:
            raise status.not_found("", "namespaces", namespace)
        if found["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = status.Cause(
                "metadata.namespace", f"namespace {namespace} is being terminated", "NamespaceTerminating"
            )
            raise status.forbidden(resource.group, resource.plural, name, why, [cause])

    def _ensure_namespace(self, name: str) -> None:
        if self.store.get(Key("namespaces", "", name)) is None:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            self.create(self.served("", "v1", "namespaces"), body)


def _key(resource: Resource, namespace: str, name: str) -> Key:
    return Key(resource.id, namespace if resource.namespaced else "", name)


def _check_type(served: Served, body: Object) -> None:
    found, kind = body.get("apiVersion", served.api_version), body.get("kind", served.resource.kind)
    if kind != served.resource.kind:
        raise status.bad_request(f"expected an object of kind {served.resource.kind}, found {kind!r}")
    if found != served.api_version:
        text = f"the API version in the data ({found}) does not match the expected API version ({served.api_version})"
        raise status.bad_request(text)


def _patched(shown: Object, body: Any, how: Patch) -> Any:
    if how is Patch.JSON:
        return patches.apply_json_patch(shown, body)
    if not isinstance(body, dict):
        raise status.bad_request(f"a patch of type {how.value} is an object, found {type(body).__name__}")
    merge: Callable[[Any, Any], Any] = strategic_merge.merge if how is Patch.STRATEGIC else patches.merge_patch
    return merge(shown, body)
