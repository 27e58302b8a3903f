"""Served resources and their versions."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from nstance.kube import kinds
from nstance.kube.port import Object


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`. `path` is a JSONPath into the object."""

    name: str
    type: str
    path: str
    format: str = ""
    description: str = ""
    priority: int = 0  # above zero: only with -o wide


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """The fields of an object that `/scale` shows."""

    replicas: tuple[str, ...]
    status_replicas: tuple[str, ...]
    selector: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    name: str
    status: bool = False  # has the subresource, so writes of the object do not change the status
    scale: ScalePaths | None = None
    columns: tuple[Column, ...] = ()
    schema: Object | None = field(default=None, hash=False, compare=False)  # of an applied CRD
    fields: tuple[str, ...] = ()  # for field selectors, besides metadata.name and metadata.namespace


@dataclass(frozen=True, slots=True)
class Resource:
    group: str  # empty for the core group
    plural: str
    kind: str
    versions: tuple[Version, ...]  # the preferred one first
    namespaced: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    storage: str = ""  # the version that objects are stored in; empty: the first
    custom: bool = False  # rules of custom resources: no strategic merge, generation counts all but status
    generation: bool = False  # a core kind with a generation
    keeps_status: bool = False  # a status sent on create is stored, as for nodes

    @property
    def id(self) -> str:
        """As in kubectl: unique even if two groups share a plural."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def stored_as(self) -> str:
        version = self.storage or self.versions[0].name
        return f"{self.group}/{version}" if self.group else version


@dataclass(frozen=True, slots=True)
class Served:
    """A resource at one of its versions."""

    resource: Resource
    version: Version

    @property
    def api_version(self) -> str:
        group = self.resource.group
        return f"{group}/{self.version.name}" if group else self.version.name

    def shown(self, stored: Object) -> Object:
        """The stored object in this version. Versions differ only in apiVersion."""
        api_version, kind = self.api_version, self.resource.kind
        if stored.get("apiVersion") == api_version and stored.get("kind") == kind:
            return stored
        rest = {key: value for key, value in stored.items() if key not in ("apiVersion", "kind")}
        return {"apiVersion": api_version, "kind": kind, **rest}


class Registry:
    """The served resources: built-in ones, and those of CRDs, which take precedence."""

    def __init__(self, built_in: tuple[Resource, ...]) -> None:
        self._built_in = {(resource.group, resource.plural): resource for resource in built_in}
        self._defined: dict[tuple[str, str], Resource] = {}
        self.revision = 0  # grows with every change, for caches

    def define(self, resource: Resource) -> None:
        self._defined[resource.group, resource.plural] = resource
        self.revision += 1

    def withdraw(self, group: str, plural: str) -> None:
        if self._defined.pop((group, plural), None) is not None:
            self.revision += 1

    def all(self) -> Iterator[Resource]:
        yield from ({**self._built_in, **self._defined}).values()

    def resource(self, group: str, plural: str) -> Resource | None:
        return self._defined.get((group, plural)) or self._built_in.get((group, plural))

    def built_in(self, group: str, plural: str) -> bool:
        return (group, plural) in self._built_in

    def find(self, group: str, version: str, plural: str) -> Served | None:
        resource = self.resource(group, plural)
        if resource is None:
            return None
        return next((Served(resource, each) for each in resource.versions if each.name == version), None)

    def of_kind(self, group: str, kind: str) -> Resource | None:
        return next((each for each in self.all() if each.group == group and each.kind == kind), None)


def builtin(kind: kinds.Kind, *, short: str = "", categories: str = "", **options: object) -> Resource:
    """A built-in resource with one version. Options are fields of `Version` or of `Resource`."""
    own = {name: options.pop(name) for name in ("status", "scale", "columns", "fields") if name in options}
    resource = Resource(
        kind.group,
        kind.plural,
        kind.name,
        (Version(kind.version, **own),),  # type: ignore[arg-type]
        kind.namespaced,
        kind.name.lower(),
        tuple(short.split()),
        tuple(categories.split()),
    )
    return replace(resource, **options) if options else resource  # type: ignore[arg-type]
