"""What every controller is given, and what is expected of one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from nstance.clock import Clock, Rng
from nstance.kube.events import Recorder
from nstance.kube.kinds import Kind
from nstance.kube.mirror import Mirror
from nstance.kube.port import Kube, Object
from nstance.kube.queue import Pass
from nstance.model.ids import ClusterId, TenantId
from nstance.operator.metrics import Metrics
from nstance.operator.options import SERVICE_ACCOUNT, Endpoint
from nstance.operator.shards.ports import Listener, Shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What stays the same as long as the process lives."""

    namespace: str
    cluster: ClusterId
    tenant: TenantId
    server: str  # URL of the API server that the operator itself talks to
    server_ca: Callable[[], bytes | None] = field(repr=False)  # None: one that the system trusts
    endpoint: Endpoint | None = None  # of a workload cluster elsewhere
    service_account: str = SERVICE_ACCOUNT

    @property
    def name(self) -> str:
        """Of the Cluster, and of the NstanceCluster behind it."""
        return f"{self.cluster}--{self.tenant}"


class Mirrors:
    """One mirror for each kind, however many controllers look into it."""

    def __init__(self, kube: Kube, *, clock: Clock, rng: Rng) -> None:
        self._kube = kube
        self._clock = clock
        self._rng = rng
        self._made: dict[tuple[Kind, str, str, str], Mirror] = {}

    def of(
        self,
        kind: Kind,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        trim: Callable[[Object], Object] | None = None,
    ) -> Mirror:
        """Ask before the controllers run: those asked for later would not be followed. `trim` is the first asker's."""
        key = (kind, namespace, labels, fields)
        if key not in self._made:
            self._made[key] = Mirror(
                self._kube,
                kind,
                clock=self._clock,
                rng=self._rng,
                namespace=namespace,
                labels=labels,
                fields=fields,
                trim=trim,
            )
        return self._made[key]

    def all(self) -> tuple[Mirror, ...]:
        return tuple(self._made.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    settings: Settings
    kube: Kube  # of the cluster that the operator's own objects are in
    mirrors: Mirrors  # of it
    workload: Kube  # of the cluster that the nodes are in; the same one unless NSTANCE_CAPI_ENDPOINT says otherwise
    workload_mirrors: Mirrors
    events: Recorder  # on objects of `kube`
    workload_events: Recorder  # on objects of `workload`
    shards: Shards
    metrics: Metrics
    clock: Clock
    rng: Rng

    def report(self, done: Pass) -> None:
        """For queues: `Queue(..., report=parts.report)`."""
        self.metrics.reconciled(done.queue, done.result.value, done.took)


class Controller(Listener, Protocol):
    @property
    def synced(self) -> bool:
        """Has seen enough to act. Mirrors are waited for without this."""
        ...

    async def run(self) -> None:
        """Until it is cancelled."""
        ...
