"""What controllers of the operator are made of, over one Kubernetes that is the management and the workload cluster."""

from nstance.clock import Clock, Rng
from nstance.kube.events import Recorder
from nstance.kube.port import Kube
from nstance.model.ids import ClusterId, TenantId
from nstance.operator.controllers.context import ControllerContext, Mirrors, Settings
from nstance.operator.metrics import Metrics
from nstance.operator.shards.ports import Shards

NAMESPACE = "default"


def made(kube: Kube, shards: Shards, *, clock: Clock, rng: Rng) -> ControllerContext:
    mirrors = Mirrors(kube, clock=clock, rng=rng)
    events = Recorder(kube, clock=clock, rng=rng, instance="test")
    settings = Settings(
        namespace=NAMESPACE,
        cluster=ClusterId("demo"),
        tenant=TenantId("default"),
        server="http://kube.invalid",
        server_ca=lambda: None,
        on_demand_namespaces="",
    )
    return ControllerContext(
        settings=settings,
        kube=kube,
        mirrors=mirrors,
        workload=kube,
        workload_mirrors=mirrors,
        events=events,
        workload_events=events,
        shards=shards,
        cluster_api=mirrors.cluster_api(settings),
        metrics=Metrics(),
        clock=clock,
        rng=rng,
    )
