"""The verbs of an API server, over a dictionary.

Every verb is one synchronous step: it happens whole, with all that follows from it, or raises `status.ApiError` and has
changed nothing. Objects handed out are the stored ones: copy before changing them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nstance import clock as clocks
from nstance.kube.api import (
    budgets,
    builtin,
    definitions,
    keeper,
    metadata,
    patches,
    scaling,
    selectors,
    status,
    strategic,
    tokens,
    values,
    writing,
)
from nstance.kube.api.keeper import Propagation
from nstance.kube.api.resources import Registry, Resource, Served
from nstance.kube.api.store import Key, Sink, Store
from nstance.kube.api.watches import Watch
from nstance.kube.port import Object, Patch

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
WINDOW = 10_000  # changes that watchers may lag behind
_KEPT_FOREVER = ("default", "kube-public", "kube-system")


@dataclass(frozen=True, slots=True)
class Options:
    """What may be said with a write."""

    dry_run: bool = False
    strict: bool = False  # unknown fields are refused instead of dropped; where a schema is known
    manager: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    items: list[Object]
    version: str
    rest: str = ""  # the token that continues
    remaining: int = 0


PLAIN = Options()


class Api:
    def __init__(
        self,
        clock: clocks.Clock,
        rng: clocks.Rng,
        *,
        version: int = 0,
        window: int = WINDOW,
        sink: Sink | None = None,
        resources: tuple[Resource, ...] = builtin.RESOURCES,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self.registry = Registry(resources)
        self.store = Store(version=version, window=window, sink=sink)
        self._keeper = keeper.Keeper(self.store, self.registry, clock)

    def begin(self) -> None:
        """Makes the namespaces that every cluster has."""
        for name in NAMESPACES:
            self._ensure_namespace(name)

    def served(self, group: str, version: str, plural: str) -> Served:
        found = self.registry.find(group, version, plural)
        if found is None:
            raise status.no_such_path()
        return found

    # Reading

    def get(self, served: Served, name: str, *, namespace: str = "", subresource: str = "") -> Object:
        body = served.shown(self._found(served.resource, namespace, name))
        if subresource == "scale":
            return scaling.shown(served, body)
        return body

    def list(
        self,
        served: Served,
        *,
        namespace: str = "",
        selector: selectors.Selector = selectors.EVERYTHING,
        limit: int = 0,
        rest: str = "",
    ) -> Page:
        """Pages continue the list as it was when the first one was read; 410 when that is too long ago."""
        version, after = tokens.opened(rest) if rest else (self.store.version, ("", ""))
        objects = self.store.as_of(version, served.resource.id)
        names = sorted(name for name in objects if (not namespace or name[0] == namespace) and name > after)
        found = [name for name in names if selector.matches(objects[name])]
        shown = found[:limit] if limit else found
        more = len(found) - len(shown)
        items = [served.shown(objects[name]) for name in shown]
        return Page(items, str(version), tokens.sealed(version, shown[-1]) if more else "", more)

    def watch(
        self,
        served: Served,
        version: str,
        *,
        namespace: str = "",
        selector: selectors.Selector = selectors.EVERYTHING,
    ) -> Watch:
        """Goes on after a version. Raises 400 for one that is none, 410 for one that is too old."""
        if not (version.isascii() and version.isdecimal() and len(version) < 20):
            raise status.bad_request(f'Invalid value: "{version[:40]}": resourceVersion must be a number')
        watch = Watch(self.store, served, int(version), namespace, selector)
        next(self.store.since(int(version)), None)
        return watch

    # Writing

    def create(self, served: Served, body: Any, *, namespace: str = "", options: Options = PLAIN) -> Object:
        resource = served.resource
        meta = metadata.checked(resource, body)
        _check_type(served, body)
        namespace = self._namespace_of(resource, meta, namespace)
        if meta.get("resourceVersion"):
            raise status.bad_request("resourceVersion should not be set on objects to be created")
        name = meta.get("name", "")
        if not name and meta.get("generateName"):
            name = metadata.generated(meta["generateName"], self._rng)
        given = {**meta, "name": name} | ({"namespace": namespace} if resource.namespaced else {})
        now = metadata.timestamp(self._clock.wall())
        stored = writing.new(
            served, {**body, "metadata": given}, uid=metadata.uid(self._rng), now=now, strict=options.strict
        )
        key = _key(resource, namespace, name)
        if self.store.get(key) is not None:
            raise status.already_exists(resource.group, resource.plural, name)
        self._check_namespace(resource, namespace, name)
        if resource.id == definitions.ID:
            stored["status"] = definitions.accepted(stored, now)
        return self._kept(served, key, stored, options)

    def replace(
        self,
        served: Served,
        name: str,
        body: Any,
        *,
        namespace: str = "",
        subresource: str = "",
        options: Options = PLAIN,
    ) -> Object:
        old = self._found(served.resource, namespace, name)
        if subresource == "scale":
            return scaling.shown(served, self._update(served, old, scaling.applied(served, old, body), "", options))
        meta = metadata.checked(served.resource, body)
        _check_type(served, body)
        if not meta.get("resourceVersion") and (served.resource.custom or served.resource.plural == "leases"):
            text = "Invalid value: 0x0: must be specified for an update"
            cause = status.Cause("metadata.resourceVersion", text)
            raise status.invalid(served.resource.group, served.resource.kind, name, [cause])
        return self._update(served, old, body, subresource, options)

    def patch(
        self,
        served: Served,
        name: str,
        body: Any,
        *,
        how: Patch,
        namespace: str = "",
        subresource: str = "",
        options: Options = PLAIN,
    ) -> Object:
        if how is Patch.APPLY:
            return self._apply(served, name, body, namespace=namespace, subresource=subresource, options=options)
        old = self._found(served.resource, namespace, name)
        shown = served.shown(old)
        if subresource == "scale":
            scale = _patched(scaling.shown(served, shown), body, how)
            return scaling.shown(served, self._update(served, old, scaling.applied(served, old, scale), "", options))
        if how is Patch.STRATEGIC and served.resource.custom:
            accepted = [each.value for each in Patch if each is not Patch.STRATEGIC]
            raise status.unsupported_media(how.value, accepted)
        return self._update(served, old, _patched(shown, body, how), subresource, options)

    def _apply(
        self, served: Served, name: str, body: Any, *, namespace: str, subresource: str, options: Options
    ) -> Object:
        """As a merge: fields of the body win, lists of core kinds merge by their keys, nothing is removed."""
        if not options.manager:
            raise status.bad_request("fieldManager is required for apply patch")
        if not isinstance(body, dict):
            raise status.bad_request("the body of an apply patch is an object")
        if not body.get("apiVersion") or not body.get("kind"):
            raise status.bad_request("apiVersion and kind must be set in an apply patch")
        old = self.store.get(_key(served.resource, namespace, name))
        if old is None and not subresource:
            given = {**metadata.checked(served.resource, body), "name": name}
            return self.create(served, {**body, "metadata": given}, namespace=namespace, options=options)
        old = self._found(served.resource, namespace, name)
        if subresource == "scale":
            scale = patches.merge(scaling.shown(served, old), body)
            return scaling.shown(served, self._update(served, old, scaling.applied(served, old, scale), "", options))
        _check_type(served, body)
        merge = patches.merge if served.resource.custom else strategic.merge
        return self._update(served, old, merge(served.shown(old), body), subresource, options)

    def delete(
        self,
        served: Served,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        version: str = "",
        propagation: Propagation = Propagation.BACKGROUND,
        dry_run: bool = False,
    ) -> tuple[Object, bool]:
        """The object as it was last, and whether it is gone; with finalizers it stays for now."""
        resource = served.resource
        body = self._found(resource, namespace, name)
        for what, wanted, found in (
            ("UID", uid, body["metadata"]["uid"]),
            ("ResourceVersion", version, body["metadata"]["resourceVersion"]),
        ):
            if wanted and wanted != found:
                why = f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
                raise status.conflict(resource.group, resource.plural, name, why)
        if resource.id == "namespaces" and name in _KEPT_FOREVER:
            raise status.forbidden("", "namespaces", name, "this namespace may not be deleted")
        key = _key(resource, namespace, name)
        if dry_run:
            return served.shown(body), not body["metadata"].get("finalizers")
        last = self._keeper.delete(key, propagation)
        self._keeper.settle()
        kept = self.store.get(key)
        return served.shown(last if kept is None else kept), kept is None

    def evict(self, name: str, *, namespace: str, uid: str = "", version: str = "", dry_run: bool = False) -> None:
        pods = self.served("", "v1", "pods")
        pod = self._found(pods.resource, namespace, name)
        refusal = budgets.refusal(pod, self.store.all("poddisruptionbudgets.policy", namespace))
        if refusal is not None:
            raise refusal
        self.delete(pods, name, namespace=namespace, uid=uid, version=version, dry_run=dry_run)

    def token(
        self, service_account: str, *, namespace: str, seconds: int, audiences: Sequence[str] = ()
    ) -> tuple[str, float]:
        """A well-formed token that nobody signed, and when it expires."""
        accounts = self.served("", "v1", "serviceaccounts")
        account = self._found(accounts.resource, namespace, service_account)
        if seconds < 600:
            cause = status.Cause(
                "spec.expirationSeconds", f"Invalid value: {seconds}: may not specify less than 10 minutes"
            )
            raise status.invalid("authentication.k8s.io", "TokenRequest", service_account, [cause])
        now, uid = self._clock.wall(), metadata.uid(self._rng)
        return tokens.unsigned(account, now=int(now), seconds=seconds, audiences=audiences, uid=uid)

    # From outside: a person or a program that wrote or removed what this server keeps

    def load(self, served: Served, body: Object) -> None:
        """An object that this server has kept before, as it was."""
        meta = body["metadata"]
        self._keeper.load(_key(served.resource, meta.get("namespace", ""), meta["name"]), body)

    def adopt(self, served: Served, name: str, body: Any, *, namespace: str = "") -> Object:
        """An object as somebody wrote it, status and all; missing metadata is filled in, nothing he knew is asked for."""
        resource = served.resource
        meta = metadata.checked(resource, body)
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
        whole = {**body, "metadata": {**meta, **own}}
        now = metadata.timestamp(self._clock.wall())
        if old is None:
            taken = {each["metadata"]["uid"] for each in self.store.all(resource.id)}  # a copied file has another's
            uid = meta["uid"] if meta.get("uid") and meta["uid"] not in taken else metadata.uid(self._rng)
            since = meta.get("creationTimestamp") or now
            stored = writing.new(served, whole, uid=uid, now=since)
            stored["metadata"].pop("resourceVersion", None)
        else:
            kept = {name: value for name, value in whole["metadata"].items() if name not in ("uid", "resourceVersion")}
            stored = writing.changed(served, old, {**whole, "metadata": kept})
        if "status" in body:
            stored["status"] = values.copied(body["status"])
            writing.check(served, stored)
        elif resource.id == definitions.ID:
            stored["status"] = definitions.accepted(stored, now)
        if old is not None and values.same(old, stored):
            return old
        return self._kept(served, key, stored, PLAIN)

    # Inside

    def _found(self, resource: Resource, namespace: str, name: str) -> Object:
        body = self.store.get(_key(resource, namespace, name))
        if body is None:
            raise status.not_found(resource.group, resource.plural, name)
        return body

    def _update(self, served: Served, old: Object, body: Any, subresource: str, options: Options) -> Object:
        if subresource == "status" and not served.version.status:
            raise status.no_such_path()
        changed = writing.changed(served, old, body, subresource=subresource, strict=options.strict)
        if values.same(old, changed):
            return served.shown(old)
        meta = old["metadata"]
        return self._kept(served, _key(served.resource, meta.get("namespace", ""), meta["name"]), changed, options)

    def _kept(self, served: Served, key: Key, body: Object, options: Options) -> Object:
        if options.dry_run:
            return served.shown(body)
        stored = self._keeper.put(key, body)
        self._keeper.settle()
        return served.shown(stored)

    def _namespace_of(self, resource: Resource, meta: Object, namespace: str) -> str:
        if not resource.namespaced:
            if meta.get("namespace"):
                raise status.bad_request("namespace should not be set on a cluster-scoped object")
            return ""
        given = str(meta.get("namespace") or "")
        if given and namespace and given != namespace:
            raise status.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if not given and not namespace:
            raise status.bad_request("an empty namespace may not be set during creation")
        return given or namespace

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        space = self.store.get(Key("namespaces", "", namespace))
        if space is None:
            raise status.not_found("", "namespaces", namespace)
        if space["metadata"].get("deletionTimestamp"):
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
        return patches.operate(shown, body)
    if not isinstance(body, dict):
        raise status.bad_request(f"a patch of type {how.value} is an object, found {type(body).__name__}")
    merge: Callable[[Any, Any], Any] = strategic.merge if how is Patch.STRATEGIC else patches.merge
    return merge(shown, body)
