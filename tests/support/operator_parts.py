"""What controllers of the operator are made of, over one Kubernetes that is the management and the workload cluster."""

from nstance.clock import Chance, Clock
from nstance.kube.events import Recorder
from nstance.kube.port import Kube
from nstance.model.ids import ClusterId, TenantId
from nstance.operator.metrics import Metrics
from nstance.operator.parts import Mirrors, Parts, Settings
from nstance.operator.ports import Shards

NAMESPACE = "default"


def made(kube: Kube, shards: Shards, *, clock: Clock, chance: Chance) -> Parts:
    mirrors = Mirrors(kube, clock=clock, chance=chance)
    events = Recorder(kube, clock=clock, chance=chance, instance="test")
    return Parts(
        settings=Settings(
            namespace=NAMESPACE,
            cluster=ClusterId("demo"),
            tenant=TenantId("default"),
            server="http://kube.invalid",
            server_ca=lambda: None,
        ),
        kube=kube,
        mirrors=mirrors,
        workload=kube,
        workload_mirrors=mirrors,
        events=events,
        workload_events=events,
        shards=shards,
        metrics=Metrics(),
        clock=clock,
        chance=chance,
    )
