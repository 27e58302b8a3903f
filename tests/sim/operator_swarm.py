"""Random schedules for the operator, in virtual time: its own controllers over the Kubernetes in memory and shards that are
imitated here, with lost answers, broken watches, expired versions, silent shards and an operator that is killed anywhere.

    python -m sim.operator_swarm 200      # from tests/: so many seeds

Checked at every step: an instance is asked for only under an ID that its machine holds already, each machine has one ID
for life, a node is empty when its drain is acknowledged. Checked at rest: every pool has its size, and each shard the part
that Kubernetes shows; every instance of a pool has its two objects; an instance whose Machine was deleted is gone; every
machine has one VM and no VM is without its machine; every pod that asks has a machine; no node stays cordoned.
"""

import asyncio
import contextlib
import contextvars
import logging
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from nstance.kube import errors, kinds, memory
from nstance.kube.api import status
from nstance.kube.api.server import Target
from nstance.kube.memory import READS, Fate, MemoryKube, Verb
from nstance.kube.port import Object
from nstance.model import ids
from nstance.model.ids import InstanceId
from nstance.operator.controllers import pod_objects, registry, resources
from nstance.operator.controllers.machine_objects import pool_instance
from nstance.operator.controllers.machines import UUID_ANNOTATION
from nstance.operator.controllers.pool_members import removed_machines
from nstance.operator.shards.ports import Listener
from nstance.sim.loop import Machine, VirtualLoop
from nstance.sim.rng import SeededRng
from nstance.v1 import operator_pb2 as pb
from sim.operator_shards import Link, Links, Shard, copied
from support import operator_parts
from support.operator_parts import NAMESPACE

SHARDS = ("a", "b")
STORM, CALM = 240.0, 240.0


class Violation(AssertionError):
    """What must never happen."""


class World:
    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.loop = loop
        self.dice = SeededRng(seed)
        self.clock = Machine("world", loop)
        self.api = memory.cluster(self.clock, self.dice)
        self.kube = MemoryKube(self.api, self.clock)  # without faults: people, kubelets, this test
        self.shards = {name: Shard(name, self) for name in SHARDS}
        self.stormy = True
        self.drains: dict[str, float] = {}
        self.ids_of: dict[str, str] = {}  # uid of a machine: its one and only ID
        self.violations: list[str] = []
        self.deleted: set[str] = set()  # instances whose Machine somebody deleted
        self.faults = 0
        self.kills = 0
        self._operator: Machine | None = None
        self._client: MemoryKube | None = None
        self._serial = 0

    # ---- the environment

    def now(self) -> float:
        return self.loop.time()

    def later(self, seconds: float, work: Callable[[], Any]) -> None:
        # In no process's name: an operator that is killed must not take along what it set in motion elsewhere.
        self.loop.call_later(seconds, work, context=contextvars.Context())

    def fresh(self) -> int:
        return ids.uuid7(int(self.clock.wall() * 1000), self.dice.bits(74))

    def unlucky(self, share: float) -> bool:
        unlucky = self.stormy and self.dice.random() < share
        self.faults += unlucky
        return unlucky

    def node(self, id: str, provider_id: str) -> None:
        served = self.api.served("", "v1", "nodes")
        self.api.create(served, {"metadata": {"name": id}, "spec": {"providerID": provider_id}})
        for _ in range(self.dice.randrange(3)):
            self._serial += 1
            body = {"metadata": {"name": f"p{self._serial}"}, "spec": {"nodeName": id, "containers": []}}
            self.api.create(self.api.served("", "v1", "pods"), body, namespace=NAMESPACE)

    def unnode(self, id: str) -> None:
        for plural, name, namespace in [("nodes", id, ""), *(("pods", each, NAMESPACE) for each in self.pods_on(id))]:
            with contextlib.suppress(status.ApiError):
                self.api.delete(Target(self.api.served("", "v1", plural), name, namespace))

    def all(self, kind: kinds.Kind) -> list[Object]:
        return self.api.list(self.api.served(kind.group, kind.version, kind.plural)).items

    def pods_on(self, node: str) -> list[str]:
        return [resources.name(pod) for pod in self.all(kinds.POD) if resources.spec(pod).get("nodeName") == node]

    # ---- what is checked at once

    def _violated(self, what: str) -> None:
        """Kept as well as raised: a queue would only try again."""
        self.violations.append(f"after {self.now():.3f} s: {what}")
        raise Violation(what)

    def asked(self, asked: str) -> None:
        holders = [
            item
            for item in self.all(kinds.NSTANCE_MACHINE)
            if resources.annotations(item).get(UUID_ANNOTATION) == asked
        ]
        if not holders:
            self._violated(f"an instance {asked} was asked for that no machine has stored")
        for item in holders:
            known = self.ids_of.setdefault(resources.uid(item), asked)
            if known != asked:
                self._violated(f"{resources.name(item)} asked for {asked} after {known}")

    def acknowledged(self, instance: str) -> None:
        left = [
            resources.name(pod)
            for pod in self.all(kinds.POD)
            if resources.spec(pod).get("nodeName") == instance and pod_objects.must_evict(pod)
        ]
        if left:
            self._violated(f"{instance} was acknowledged with {left} on it")

    # ---- the operator

    async def fate(self, verb: Verb, kind: kinds.Kind, name: str) -> Fate:
        delay = self.dice.uniform(0.0, 0.02)
        if self.unlucky(0.04):
            return Fate(before=delay, error=errors.UnavailableError("refused"))
        if verb not in READS and self.unlucky(0.04):
            return Fate(before=delay, lost=True)
        return Fate(before=delay, after=self.dice.uniform(0.0, 0.02))

    def start(self) -> None:
        machine = self._operator = Machine(f"operator-{self.kills}", self.loop)
        machine.run(lambda: self._operate(machine))

    def kill(self) -> None:
        assert self._operator is not None
        self.kills += 1
        for shard in self.shards.values():
            shard.links.clear()
        self._operator.kill()
        self.start()

    async def _operate(self, machine: Machine) -> None:
        kube = self._client = MemoryKube(self.api, machine, faults=self.fate)
        last_seen: list[Listener] = []
        links = {name: Link(shard, lambda: last_seen) for name, shard in self.shards.items()}
        parts = operator_parts.made(kube, Links(links), clock=machine, rng=self.dice)
        built = registry.build_controllers(parts)
        last_seen += built
        async with asyncio.TaskGroup() as group:
            for mirror in parts.mirrors.all():
                group.create_task(mirror.run())
            group.create_task(parts.events.run())
            for each in built:
                group.create_task(each.run())
            group.create_task(self._connect(links, machine))

    async def _connect(self, links: Mapping[str, Link], machine: Machine) -> None:
        while True:
            for link in links.values():
                if link.shard.up:
                    link.connect()
                else:
                    link.lose()
            await machine.sleep(self.dice.uniform(0.05, 1.0))

    # ---- the story

    async def play(self) -> None:
        for shard in self.shards.values():
            shard.upsert("web", pb.GroupConfig(template="web", size=2), "")
        await self.kube.create(
            kinds.SERVICE_ACCOUNT, {"metadata": {"name": "nstance-capi-workload"}}, namespace=NAMESPACE
        )
        self.start()
        until = self.now() + STORM
        while self.now() < until:
            await asyncio.sleep(self.dice.uniform(0.0, 6.0))
            await self._disturb()
        self.stormy = False
        for shard in self.shards.values():
            shard.up = True
        await asyncio.sleep(CALM)
        self._judge()

    async def _disturb(self) -> None:
        dice = self.dice
        assert self._client is not None
        match dice.randrange(15):
            case 0 | 1:
                await self._scale(dice.randrange(9))
            case 2 | 3:
                await self._make_machine()
            case 4:
                await self._delete_on_demand()
            case 12:
                await self._delete_pool_machine()
            case 13:
                await self._scale_down_to_node()
            case 14:
                await self._delete_objects_only()
            case 5:
                self._serial += 1
                body = {
                    "metadata": {"name": f"job{self._serial}", "annotations": {"on-demand.nstance.dev/group": "web"}}
                }
                await self.kube.create(kinds.POD, {**body, "spec": {"containers": []}}, namespace=NAMESPACE)
            case 6:
                await self._finish_pod()
            case 7:
                shard = self.shards[dice.choice(SHARDS)]
                shard.up = not shard.up
                self.faults += 1
            case 8:
                self._client.break_watches()
                if dice.random() < 0.5:
                    self.api.store.forget()
                self.faults += 1
            case 9 | 10:
                self.kill()
            case 11:
                self._meddle(dice.choice(SHARDS))

    async def _scale(self, replicas: int) -> None:
        with contextlib.suppress(errors.NotFoundError):  # not imported yet
            await self.kube.patch(
                kinds.MACHINE_POOL, "nstance-web", {"spec": {"replicas": replicas}}, namespace=NAMESPACE
            )

    async def _make_machine(self) -> None:
        self._serial += 1
        name = f"m{self._serial}"
        reference = {"apiGroup": kinds.INFRASTRUCTURE, "kind": "NstanceMachine", "name": name}
        for kind, spec in (
            (kinds.MACHINE, {"clusterName": "demo--default", "infrastructureRef": reference}),
            (kinds.NSTANCE_MACHINE, {"group": "web"}),
        ):
            await self.kube.create(kind, {"metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE)

    async def _delete_on_demand(self) -> None:
        await self._delete([each for each in self.all(kinds.NSTANCE_MACHINE) if not pool_instance(each)])

    async def _delete(self, found: list[Object]) -> None:
        if not found:
            return
        name = resources.name(self.dice.choice(found))
        for kind in (kinds.NSTANCE_MACHINE, kinds.MACHINE):
            with contextlib.suppress(errors.NotFoundError):
                await self.kube.delete(kind, name, namespace=NAMESPACE)

    def _pool_machines(self) -> list[str]:
        """That have an instance which does not leave yet."""
        staying = {
            each.instance_id
            for shard in self.shards.values()
            for each in shard.alive("web", on_demand=False)
            if each.state != "draining"
        }
        names = [resources.name(each) for each in self.all(kinds.MACHINE) if not resources.is_being_deleted(each)]
        return [each for each in names if each in staying]

    async def _delete_pool_machine(self) -> None:
        if found := self._pool_machines():
            name = self.dice.choice(found)
            self.deleted.add(name)
            await self.kube.delete(kinds.MACHINE, name, namespace=NAMESPACE)

    async def _scale_down_to_node(self) -> None:
        """As cluster-autoscaler does it."""
        pool = next(iter(self.all(kinds.MACHINE_POOL)), None)
        if pool is None or not pool["spec"]["replicas"] or not (found := self._pool_machines()):
            return
        mark = {"metadata": {"annotations": {resources.DELETE_MACHINE: "now"}}}
        with contextlib.suppress(errors.NotFoundError):
            await self.kube.patch(kinds.MACHINE, self.dice.choice(found), mark, namespace=NAMESPACE)
            await self._scale(pool["spec"]["replicas"] - 1)

    async def _delete_objects_only(self) -> None:
        """The NstanceMachine of a pool: nobody means its instance."""
        if found := [each for each in self.all(kinds.NSTANCE_MACHINE) if pool_instance(each)]:
            name = resources.name(self.dice.choice(found))
            await self.kube.delete(kinds.NSTANCE_MACHINE, name, namespace=NAMESPACE)

    async def _finish_pod(self) -> None:
        asking = [pod for pod in self.all(kinds.POD) if resources.annotations(pod)]
        if not asking:
            return
        name = resources.name(self.dice.choice(asking))
        if self.dice.random() < 0.5:
            await self.kube.delete(kinds.POD, name, namespace=NAMESPACE)
        else:
            done = {"status": {"phase": "Succeeded"}}
            await self.kube.patch(kinds.POD, name, done, namespace=NAMESPACE, subresource="status")

    def _meddle(self, shard: str) -> None:
        """Somebody changes the group at the server, or deletes an instance there."""
        target = self.shards[shard]
        here = [each for each in target.instances.values() if each.state == "running"]
        if here and self.dice.random() < 0.5:
            target.leave(self.dice.choice(here).instance_id)
        elif "web" in target.groups:
            config = copied(target.groups["web"].config)
            config.size = self.dice.randrange(5)
            target.upsert("web", config, "")

    # ---- what is checked at rest

    def _judge(self) -> None:
        found = self.all(kinds.MACHINE_POOL)
        if not found:
            raise Violation("the group was never imported")
        desired = {item["spec"]["shard"]: item["spec"]["size"] for item in self.all(kinds.NSTANCE_SHARD_GROUP)}
        if (replicas := found[0]["spec"]["replicas"]) != sum(desired.values()):
            raise Violation(f"{replicas} replicas are divided into {desired}")
        for name, shard in self.shards.items():
            here = [each for each in shard.alive("web", on_demand=False) if each.state != "draining"]
            if len(here) != desired[name]:
                raise Violation(f"shard {name} has {len(here)} of {desired[name]}")
        self._judge_pool_machines()
        machines = [item for item in self.all(kinds.NSTANCE_MACHINE) if not pool_instance(item)]
        chosen = [resources.annotations(item).get(UUID_ANNOTATION, "") for item in machines]
        wanted = sorted(each and ids.requested_uuid(ids.DEFAULT_TENANT, uuid.UUID(each).int) for each in chosen)
        alive = sorted(
            ids.uuid_of(InstanceId(each.instance_id))
            for shard in self.shards.values()
            for each in shard.alive("web", on_demand=True)
        )
        if wanted != alive:
            raise Violation(f"machines {wanted} and VMs {alive} differ")
        for item in machines:
            if not resources.status(item).get("ready") or resources.is_being_deleted(item):
                raise Violation(f"{resources.name(item)} is not ready: {resources.status(item)}")
        asking = {
            resources.uid(pod)
            for pod in self.all(kinds.POD)
            if resources.annotations(pod) and resources.status(pod).get("phase") != "Succeeded"
        }
        served = [uid for item in machines if (uid := resources.labels(item).get("nstance.dev/pod-uid"))]
        if sorted(asking) != sorted(served):
            raise Violation(f"pods {sorted(asking)} and their machines {sorted(served)} differ")
        for node in self.all(kinds.NODE):
            if resources.spec(node).get("unschedulable"):
                raise Violation(f"node {resources.name(node)} stays cordoned")

    def _judge_pool_machines(self) -> None:
        """One NstanceMachine and one Machine for each instance of the pool; who was chosen has left."""
        alive = sorted(
            each.instance_id for shard in self.shards.values() for each in shard.alive("web", on_demand=False)
        )
        items = sorted(filter(None, map(pool_instance, self.all(kinds.NSTANCE_MACHINE))))
        labelled = (each for each in self.all(kinds.MACHINE) if resources.POOL_LABEL in resources.labels(each))
        machines = sorted(map(resources.name, labelled))
        if not alive == items == machines:
            raise Violation(f"instances {alive}, NstanceMachines {items} and Machines {machines} differ")
        if left := self.deleted.intersection(alive):
            raise Violation(f"the Machines of {sorted(left)} were deleted, and the instances are still there")
        [pool] = self.all(kinds.MACHINE_POOL)
        if removed_machines(pool):
            raise Violation(f"the pool still names removed machines: {removed_machines(pool)}")


def run(seed: int) -> World:
    """Raises Violation."""
    loop = VirtualLoop(seed)
    world = World(seed, loop)
    try:
        loop.run_until_complete(world.play())
    finally:
        loop.finish()
    if world.violations:
        raise Violation(world.violations[0])
    return world


def main() -> None:
    logging.disable()
    first, count = (int(sys.argv[2]) if len(sys.argv) > 2 else 0), int(sys.argv[1])
    faults = kills = 0
    for seed in range(first, first + count):
        try:
            world = run(seed)
        except Exception as problem:
            print(f"seed {seed}: {type(problem).__name__}: {problem}")
            continue
        faults, kills = faults + world.faults, kills + world.kills
    print(f"{count} seeds, {faults} faults, {kills} kills")


if __name__ == "__main__":
    main()
