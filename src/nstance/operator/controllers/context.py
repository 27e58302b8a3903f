"""What every controller gets, and what controllers have in common."""

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from nstance.clock import Clock, Rng
from nstance.kube import errors, kinds
from nstance.kube.events import Recorder
from nstance.kube.kinds import Kind
from nstance.kube.mirror import Mirror
from nstance.kube.port import Kube, Object, Selection
from nstance.kube.queue import Pass, Queue, Rules
from nstance.model.ids import ClusterId, TenantId
from nstance.operator.controllers import cluster_api, resources
from nstance.operator.controllers.cluster_api import ClusterApi
from nstance.operator.controllers.resources import Condition
from nstance.operator.metrics import Metrics
from nstance.operator.options import KEY_SECRET, ON_DEMAND_NAMESPACES, SERVICE_ACCOUNT, Endpoint, Waits
from nstance.operator.shards.ports import Listener, Shards, ShardUnreachableError
from nstance.telemetry.traces import Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What stays the same while the process runs."""

    namespace: str
    cluster: ClusterId
    tenant: TenantId
    server: str  # URL of the operator's own API server
    server_ca: Callable[[], bytes | None] = field(repr=False)  # None: one that the system trusts
    endpoint: Endpoint | None = None  # API server of a separate workload cluster
    service_account: str = SERVICE_ACCOUNT
    key_secret: str = KEY_SECRET  # remembers the Cluster's UID
    on_demand_namespaces: str | None = ON_DEMAND_NAMESPACES  # a label selector, empty: all; None: no pod gets a node
    delete_nodes: bool | None = None  # of VMs that are gone; None: where Cluster API's controllers do not run
    waits: Waits = field(default_factory=Waits)

    @property
    def name(self) -> str:
        """Of the Cluster and its NstanceCluster."""
        return f"{self.cluster}--{self.tenant}"


class Mirrors:
    """One mirror for each kind and selection, shared by all controllers."""

    def __init__(self, kube: Kube, *, clock: Clock, rng: Rng) -> None:
        self._kube = kube
        self._clock = clock
        self._rng = rng
        self._mirrors: dict[tuple[Kind, str, str, str], Mirror] = {}

    def of(
        self,
        kind: Kind,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        trim: Callable[[Object], Object] | None = None,
    ) -> Mirror:
        """Call before the controllers run: later mirrors would not be started. The first caller's `trim` counts."""
        key = (kind, namespace, labels, fields)
        if key not in self._mirrors:
            selection = Selection(kind, namespace, labels=labels, fields=fields)
            self._mirrors[key] = Mirror(self._kube, selection, clock=self._clock, rng=self._rng, trim=trim)
        return self._mirrors[key]

    def all(self) -> tuple[Mirror, ...]:
        return tuple(self._mirrors.values())

    def cluster_api(self, settings: Settings) -> ClusterApi:
        found = {kind: self.of(kind, namespace=settings.namespace) for kind in cluster_api.KINDS}
        return ClusterApi(found, cluster=settings.name, clock=self._clock, waits=settings.waits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    settings: Settings
    kube: Kube  # the management cluster, with the operator's own objects
    mirrors: Mirrors
    workload: Kube  # the cluster with the nodes; the same one unless NSTANCE_CAPI_ENDPOINT is set
    workload_mirrors: Mirrors
    events: Recorder  # on objects of `kube`
    workload_events: Recorder  # on objects of `workload`
    shards: Shards
    cluster_api: ClusterApi
    metrics: Metrics
    clock: Clock
    rng: Rng
    tracer: Tracer | None = None  # if traces are exported

    def queue(
        self, name: str, reconcile: Callable[[str], Awaitable[float | None]], *, workers: int = 4
    ) -> "Queue[str]":
        """A work queue that reports to the metrics and retries when Kubernetes or a shard does not answer."""
        return Queue(
            name,
            reconcile,
            clock=self.clock,
            rng=self.rng,
            rules=Rules(workers, expected=(errors.KubeError, ShardUnreachableError)),
            report=self._report,
        )

    def _report(self, done: Pass) -> None:
        self.metrics.reconciled(done.queue, done.result.value, done.took)


class Controller(Listener):
    """Base of all controllers: reads mirrors, writes objects of the operator's namespace."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._kube, self._clock, self._shards = context.kube, context.clock, context.shards
        self._events = context.events
        self._namespace = context.settings.namespace
        self._clusters = self._mirror(kinds.CLUSTER)

    async def run(self) -> None:
        """Until it is cancelled."""
        raise NotImplementedError

    def _mirror(self, kind: Kind) -> Mirror:
        return self._context.mirrors.of(kind, namespace=self._namespace)

    def _find(self, mirror: Mirror, name: str) -> Object | None:
        return mirror.objects.get((self._namespace, name))

    def _cluster(self) -> Object | None:
        return self._find(self._clusters, self._context.settings.name)

    def _is_paused(self, *items: Object | None) -> bool:
        return resources.is_paused(self._cluster(), *items)

    def _has_cluster_api_controllers(self, item: Object) -> bool:
        return self._context.cluster_api.runs(item)

    async def _patch_spec(self, kind: Kind, item: Object, spec: Object) -> None:
        await self._kube.patch(kind, resources.name(item), {"spec": spec}, namespace=self._namespace)

    async def _write_status(self, kind: Kind, item: Object, status: Object, conditions: Iterable[Condition]) -> None:
        """With the condition Paused, which Cluster API's contract asks for: who writes a status is not paused."""
        shown = [*conditions, Condition("Paused", False, "NotPaused")]
        merged = resources.merge_conditions(item, shown, now=self._clock.wall())
        await resources.write_status(self._kube, kind, item, status | {"conditions": merged})

    async def _show_paused(self, kind: Kind, item: Object | None) -> None:
        if item is not None:
            message = f"paused by its Cluster's spec.paused or an annotation {resources.PAUSED}"
            paused = Condition("Paused", True, "Paused", message)
            merged = resources.merge_conditions(item, [paused], now=self._clock.wall())
            await resources.write_status(self._kube, kind, item, {"conditions": merged})

    async def _delete(self, kind: Kind, item: Object | None) -> None:
        """Exactly this object: one that is gone or was replaced by another of its name counts as deleted."""
        if item is not None and not resources.is_being_deleted(item):
            with contextlib.suppress(errors.NotFoundError, errors.ConflictError):
                await self._kube.delete(kind, resources.name(item), namespace=self._namespace, uid=resources.uid(item))
