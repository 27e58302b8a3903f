"""Faults of the cloud: VMs that end, VMs that no server created, and calls that fail."""

from typing import TYPE_CHECKING

from nstance.model.ids import DEFAULT_TENANT, GroupName, IdMaker, InstanceId, Kind, ShardId
from nstance.model.offer import Offer
from nstance.providers.memory_offers import ANY
from nstance.providers.port import CreateRequest, Scope
from nstance.sim.desired_groups import CLUSTER, SHARD, SUBNETS
from nstance.sim.faults.target import FaultGroup

if TYPE_CHECKING:
    from nstance.sim.world import World

# Which parts of an offer are named: mostly all of them.
_PATTERNS = (*[(True, True, True)] * 4, (True, False, False), (False, True, False), (False, False, True), (False,) * 3)
OURS = Scope(cluster=CLUSTER, shard=SHARD)
THEIRS = Scope(cluster=CLUSTER, shard=ShardId("sim-2"))


class CloudFaults(FaultGroup):
    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self._stripped: set[InstanceId] = set()
        self._ids = IdMaker(wall=lambda: 1.6e9 + world.now, bits=self.r.getrandbits)

    def destroy_vm(self) -> bool:
        return self.strike_vm(self.world.cloud.destroy)

    def stop_vm(self) -> bool:
        return self.strike_vm(self.world.cloud.stop)

    def strip_tags(self) -> bool:
        """A VM loses its tags. Its record decides; a VM without a record then belongs to nobody."""
        id, auditor = self.pick_vm(), self.world.auditor
        if id is None:
            return False
        record = auditor.records.get(id)
        if record is not None and [v.provider_id for v in self.world.cloud.existing(id)] != [record.provider_id]:
            return False  # a duplicate VM would belong to nobody
        self.world.cloud.strip_tags(id)
        self._stripped.add(id)
        if auditor.planted.pop(id, id) is None and id not in auditor.records:
            if self.world.desired_groups.unknown == "hold":
                auditor.protected[id] = "its tags were stripped"
            else:
                auditor.deletable.add(id)  # the delete that follows from an older listing may be on its way
        elif id in auditor.lost and id not in auditor.records:
            auditor.deletable.add(id)  # no listing shows it any more
        return True

    def _plant(self, scope: Scope) -> InstanceId:
        """A VM that no server created."""
        world, id = self.world, self._ids.make(Kind("sim"))
        request = CreateRequest(
            id=id, tenant=DEFAULT_TENANT, group=GroupName("web"), kind=Kind("sim"), template="?", created=0.0
        )
        world.planting = True
        try:
            world.cloud.create(scope, request)
        finally:
            world.planting = False
        return id

    def plant_orphan(self) -> None:
        """Our tags and no record: to be held, or to be deleted if the configuration says so."""
        self.world.auditor.planted[self._plant(OURS)] = None

    def plant_stranger(self) -> None:
        """A VM of another shard, or without tags. It must not be touched."""
        protected = self.world.auditor.protected
        if self.r.random() < 0.5:
            protected[self._plant(THEIRS)] = "it belongs to another shard"
        else:
            id = self._plant(OURS)
            self.world.cloud.strip_tags(id)
            protected[id] = "it has no tags"

    def plant_double(self) -> bool:
        """A second VM with the ID of an instance."""
        id = self.pick_vm()
        if id is None or id in self.world.auditor.planted or id in self._stripped:
            return False
        self.world.cloud.duplicate_vm(id)
        return True

    def throttle(self) -> None:
        self.world.provider_faults.throttled_until = self.world.now + self.r.uniform(1.0, 8.0)

    def brown_provider(self) -> None:
        self.world.provider_faults.brown_until = self.world.now + self.r.uniform(1.0, 8.0)

    def lose_capacity(self) -> None:
        for subnet in self.r.sample(SUBNETS, self.r.choice((1, 1, 2))):
            self.world.provider_faults.full[subnet] = self.world.now + self.r.uniform(3.0, 20.0)

    def exhaust_offers(self) -> bool:
        """Some offers have no capacity: one of them, a market, a type, a subnet, or the quota of the account."""
        groups = self.world.desired_groups.groups.values()
        for _ in range(self.r.choice((1, 2, 4))):
            group = self.r.choice(list(groups))
            offer = (self.r.choice(group.markets or ("",)), self.r.choice(group.instance_types), self.r.choice(SUBNETS))
            kept = self.r.choice(_PATTERNS)
            pattern = Offer(*(part if keep else ANY for part, keep in zip(offer, kept, strict=True)))
            self.world.provider_faults.exhausted[pattern] = self.world.now + self.r.uniform(3.0, 30.0)
        return True

    def lie_in_listing(self) -> None:
        self.world.provider_faults.partial_until = self.world.now + self.r.uniform(5.0, 25.0)
