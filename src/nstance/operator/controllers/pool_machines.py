"""MachinePool Machines: one NstanceMachine for each instance of a pool, and its Machine where Cluster API does not run.

These objects follow the instances: they are created and deleted with them. One thing goes the other way: a person or a
program that deletes a Machine removes its instance and shrinks the pool by one. The pool's replicas are reduced in one
conditional write that also names the Machine, so a crash never shrinks twice.

The trap: objects are also deleted when nobody means an instance. Their pool, Cluster, namespace or CRD is being removed, a
restored backup has other UIDs, or only the NstanceMachine was deleted. In all these cases the instance stays, and the
objects are created again if they still have a pool.
"""

import asyncio
import contextlib
import json

from nstance.kube import errors, kinds
from nstance.kube.port import Object, find
from nstance.operator.controllers import node_settings, pool_limits, pools, resources
from nstance.operator.controllers.context import Controller, ControllerContext
from nstance.operator.controllers.machine_objects import (
    condition,
    exclude_from_drains,
    listed_provider_id,
    machine_status,
    node_annotations,
    pool_instance,
    update_machine,
)
from nstance.operator.controllers.nodes import Nodes, lookup_keys
from nstance.operator.controllers.pool_members import (
    RELEASED_ANNOTATION,
    REMOVED_ANNOTATION,
    instance_of,
    machine_manifest,
    needs_remediation,
    nstance_machine_manifest,
    removed_machines,
)
from nstance.operator.controllers.pools import COUNTED
from nstance.operator.controllers.resources import Condition
from nstance.operator.controllers.shard_groups import ABANDON_ANNOTATION, REJECTED_RETRY_SECONDS, unreachable_message
from nstance.operator.shards.ports import Shard, ShardRefusedError
from nstance.v1 import operator_pb2 as pb

REPLACED_ANNOTATION = "nstance.dev/replacement-requested"  # of an NstanceMachine: the shard was asked to replace it
SHRINKING_SECONDS = 1.0  # until it is checked again whether the shard has the smaller size
MAX_REMOVED = 1000  # remembered Machines; with more, those that are gone are forgotten
MACHINE_CRD = f"{kinds.MACHINE.plural}.{kinds.MACHINE.group}"


class PoolMachines(Controller):
    def __init__(self, context: ControllerContext, nodes: Nodes) -> None:
        super().__init__(context)
        self._nodes = nodes
        self._machine_pools, self._pools, self._shard_groups, self._machines, self._items = map(
            self._mirror,
            (
                kinds.MACHINE_POOL,
                kinds.NSTANCE_MACHINE_POOL,
                kinds.NSTANCE_SHARD_GROUP,
                kinds.MACHINE,
                kinds.NSTANCE_MACHINE,
            ),
        )
        self._by_lookup_key: dict[str, str] = {}  # instances
        self._shrunk_since: dict[str, float] = {}  # by instance: when its shard was first seen with the smaller size
        self.queue = context.queue("pool machines", self._reconcile, workers=8)
        self._items.listen(self._on_item_change)
        self._machines.listen(self._on_machine_change)
        for mirror in (self._machine_pools, self._pools, self._shard_groups):
            mirror.listen(self._on_owner_change)
        self._clusters.listen(self._on_owner_change)
        context.cluster_api.listen(self._add_all)
        nodes.listen(self._on_node_change)

    async def run(self) -> None:
        mirrors = (self._machine_pools, self._pools, self._shard_groups, self._machines, self._items, self._clusters)
        await asyncio.gather(*(mirror.synced.wait() for mirror in mirrors), self._nodes.wait_synced())
        self._add_all()
        await self.queue.run()

    # ---- changes

    def _on_item_change(self, old: Object | None, new: Object | None) -> None:
        if instance := pool_instance(new or old or {}):
            self.queue.add(instance)

    def _on_machine_change(self, old: Object | None, new: Object | None) -> None:
        if instance := instance_of(new or old or {}):
            self.queue.add(instance)

    def _on_owner_change(self, old: Object | None, new: Object | None) -> None:
        """Not for each status: only what decides about all members."""
        if _decisive(old) != _decisive(new):
            self._add_all()

    def _on_node_change(self, key: str) -> None:
        if instance := self._by_lookup_key.get(key):
            self.queue.add(instance)

    def _add_all(self) -> None:
        for name in self._shards.names():
            self.on_shard_change(name)

    def on_shard_change(self, shard: str) -> None:
        found = self._shards.get(shard)
        for event in found.instances.values() if found is not None else ():
            self.on_instance_change(shard, event)
        for item in self._items.objects.values():
            if (instance := pool_instance(item)) and resources.spec(item).get("failureDomain") == shard:
                self.queue.add(instance)
        for machine in self._machines.objects.values():
            if (instance := instance_of(machine)) and self._find(self._items, instance) is None:
                self.queue.add(instance)

    def on_instance_change(self, shard: str, event: pb.InstanceEvent) -> None:
        if event.on_demand:
            return
        keys = lookup_keys(names=(event.instance_id,), provider_id=event.provider_id)
        if event.state in ("deleted", "failed"):
            self._shrunk_since.pop(event.instance_id, None)
            for key in keys:
                self._by_lookup_key.pop(key, None)
        else:
            self._by_lookup_key.update(dict.fromkeys(keys, event.instance_id))
        self.queue.add(event.instance_id)

    # ---- reconciling

    async def _reconcile(self, instance: str) -> float | None:
        item = self._find(self._items, instance)
        if item is not None and pool_instance(item) != instance:
            return None  # an on-demand machine of that name
        machine = self._machine_of(instance)
        shard, event = self._locate(instance, item)
        pool, machine_pool = self._owners(shard, event, item)
        if self._is_paused(item, machine, pool, machine_pool):
            await self._show_paused(kinds.NSTANCE_MACHINE, item)
            return None
        if machine is not None:
            await exclude_from_drains(self._kube, machine)
        if item is None:
            await self._reconcile_missing(machine, shard, event)
            return None
        if shard is not None and shard.synced and event is None:
            return await self._delete_both(item, machine)
        if resources.is_being_deleted(item):
            return await self._on_deletion(item, shard, event)
        if machine is not None and resources.is_being_deleted(machine):
            await self._delete(kinds.NSTANCE_MACHINE, item)  # as Cluster API does it where it runs
            return None
        if pool is None or machine_pool is None:
            return await self._delete_both(item, machine)
        if shard is None or event is None:
            return None  # not reachable: nothing is known
        return await self._show(item, machine, shard, event)

    async def _reconcile_missing(
        self, machine: Object | None, shard: Shard | None, event: pb.InstanceEvent | None
    ) -> None:
        """There is no NstanceMachine: creates it if there is an instance, and lets the Machine go if there is none."""
        is_abandoned = machine is not None and resources.annotations(machine).get(ABANDON_ANNOTATION) == "true"
        if event is None and not self._are_all_synced() and not is_abandoned:
            return  # a shard that is not reachable may have it
        pool, machine_pool = self._owners(shard, event, None)
        is_ending = machine is not None and resources.is_being_deleted(machine)
        if machine is not None and is_ending and not await self._is_meant(machine, machine_pool if event else None):
            await self._release_machine(machine)
        if shard is not None and event is not None and pool is not None and machine_pool is not None:
            # Also if its Machine is being deleted on purpose: the object is needed to carry that out.
            body = nstance_machine_manifest(event, shard.name, pool, machine_pool)
            await self._create(kinds.NSTANCE_MACHINE, body)
        else:
            await self._let_go(machine)

    def _machine_of(self, instance: str) -> Object | None:
        """Cluster API gives it the name of its NstanceMachine."""
        found = self._find(self._machines, instance)
        return found if found is not None and instance_of(found) == instance else None

    def _are_all_synced(self) -> bool:
        """Only then does an instance that no shard has not exist."""
        shards = [self._shards.get(name) for name in self._shards.names()]
        return all(each is not None and each.synced for each in shards)

    def _locate(self, instance: str, item: Object | None) -> tuple[Shard | None, pb.InstanceEvent | None]:
        """The shard that has the instance, or had it according to the object, and its last event."""
        for name in self._shards.names():
            shard = self._shards.get(name)
            event = shard.instances.get(instance) if shard is not None else None
            if event is not None and not event.on_demand:
                return shard, event
        return (self._shards.get(resources.spec(item).get("failureDomain", "")), None) if item else (None, None)

    def _owners(
        self, shard: Shard | None, event: pb.InstanceEvent | None, item: Object | None
    ) -> tuple[Object | None, Object | None]:
        """The NstanceMachinePool and the MachinePool of an instance, unless they or their Cluster are being deleted."""
        group = event.group if event is not None else resources.spec(item or {}).get("group", "")
        name = shard.name if shard is not None else resources.spec(item or {}).get("failureDomain", "")
        found = self._find(self._shard_groups, pools.shard_group_name(group, name))
        pool = self._find(self._pools, pools.pool_of(found)) if found is not None else None
        if pool is None or resources.is_being_deleted(pool):
            return None, None
        machine_pool = resources.find_by_infrastructure(
            self._machine_pools.objects.values(), kinds.NSTANCE_MACHINE_POOL, resources.name(pool)
        )
        cluster = self._cluster()
        is_ending = any(each is not None and resources.is_being_deleted(each) for each in (machine_pool, cluster))
        return (None, None) if machine_pool is None or is_ending else (pool, machine_pool)

    async def _create(self, kind: kinds.Kind, body: Object) -> None:
        with contextlib.suppress(errors.AlreadyExistsError):  # the mirror lags behind
            await self._kube.create(kind, body, namespace=self._namespace)

    async def _show(self, item: Object, machine: Object | None, shard: Shard, event: pb.InstanceEvent) -> float | None:
        stored, node = resources.provider_id(item), self._nodes.find(event.instance_id, event.provider_id)
        vm = listed_provider_id(event, node, stored)
        if vm != stored:
            await self._patch_spec(kinds.NSTANCE_MACHINE, item, {"providerID": vm})
        stands_in = not self._has_cluster_api_controllers(machine or {})
        if node is not None:
            pool, _ = self._owners(shard, event, item)
            named = node_annotations(machine) if machine is not None and stands_in else {}
            settings = node_settings.settings_of(pool)
            await node_settings.apply(self._context.workload, node, settings, annotations=named)
        await self._write_status(kinds.NSTANCE_MACHINE, item, machine_status(event, shard.name), [condition(event)])
        if stands_in:
            await self._stand_in(item, machine, event, vm)
        if machine is not None and needs_remediation(machine):
            return await self._replace(item, shard, event)
        return None

    async def _stand_in(self, item: Object, machine: Object | None, event: pb.InstanceEvent, vm: str) -> None:
        if machine is None:
            pool, machine_pool = self._owners(self._shards.get(resources.spec(item)["failureDomain"]), event, item)
            if pool is not None and machine_pool is not None:
                await self._create(kinds.MACHINE, machine_manifest(item, machine_pool))
            return  # its event triggers the next reconcile
        node = self._nodes.find(event.instance_id, event.provider_id)
        await update_machine(self._kube, machine, event, provider_id=vm, node=node)
        await resources.add_owner(self._kube, kinds.NSTANCE_MACHINE, item, machine, kinds.MACHINE)

    async def _replace(self, item: Object, shard: Shard, event: pb.InstanceEvent) -> float | None:
        """A MachineHealthCheck found it unhealthy, and its owner has to remediate: the shard replaces it within the limits of
        its group. Asked once; asking twice after a crash changes nothing."""
        if REPLACED_ANNOTATION in resources.annotations(item) or event.state not in COUNTED:
            return None
        try:
            await shard.replace_instance(event.instance_id)
        except ShardRefusedError as refusal:
            self._events.note(item, "RemediationRefused", str(refusal), warning=True)
            return REJECTED_RETRY_SECONDS
        self._events.note(item, "Remediated", "a MachineHealthCheck found it unhealthy, the shard replaces it")
        change = {"metadata": {"annotations": {REPLACED_ANNOTATION: "true"}}}
        await self._kube.patch(kinds.NSTANCE_MACHINE, resources.name(item), change, namespace=self._namespace)
        return None

    # ---- deletion

    async def _on_deletion(self, item: Object, shard: Shard | None, event: pb.InstanceEvent | None) -> float | None:
        if resources.annotations(item).get(ABANDON_ANNOTATION) == "true":
            await self._release(item)
            return None
        machine = await find(self._kube, kinds.MACHINE, resources.name(item), namespace=self._namespace)
        _, machine_pool = self._owners(shard, event, item)
        if machine_pool is not None:
            machine_pool = await self._kube.get(
                kinds.MACHINE_POOL, resources.name(machine_pool), namespace=self._namespace
            )
        if machine_pool is None or machine is None or not await self._is_meant(machine, machine_pool):
            await self._release(item)
            return None
        if shard is None or not shard.synced or event is None:
            message = unreachable_message(item, resources.spec(item).get("failureDomain", ""), shard)
            unknown = Condition("Ready", None, "ShardUnreachable", message)
            await self._write_status(kinds.NSTANCE_MACHINE, item, {}, [unknown])
            return None
        await self._write_status(kinds.NSTANCE_MACHINE, item, machine_status(event, shard.name), [condition(event)])
        if event.state in COUNTED:
            machine_pool = await self._shrink(machine_pool, machine)
        return await self._insist(machine_pool, shard, event)

    async def _is_meant(self, machine: Object, machine_pool: Object | None) -> bool:
        """Whether somebody wants this instance to go, or only its object goes with something else."""
        if machine_pool is None or resources.is_being_deleted(machine_pool):
            return False
        if RELEASED_ANNOTATION in resources.annotations(machine):
            return False
        if not resources.is_being_deleted(machine) or not resources.is_owned_by(machine, resources.uid(machine_pool)):
            return False
        for kind, name in ((kinds.NAMESPACE, self._namespace), (kinds.CUSTOM_RESOURCE_DEFINITION, MACHINE_CRD)):
            above = await find(self._kube, kind, name)  # dev-k8s has Cluster API's kinds without their CRDs
            if above is not None and resources.is_being_deleted(above):
                return False
        return True

    async def _shrink(self, machine_pool: Object, machine: Object) -> Object:
        """The MachinePool with one replica less, also if that was done before."""
        removed, uid = removed_machines(machine_pool), resources.uid(machine)
        replicas = resources.spec(machine_pool).get("replicas")
        if uid in removed or not replicas or pools.is_scaled_elsewhere(machine_pool):
            return machine_pool
        if len(removed) >= MAX_REMOVED:
            removed = await self._still_there(removed)
        annotations = {REMOVED_ANNOTATION: ",".join([*removed, uid])}
        shrunk = await resources.patch_unchanged(
            self._kube, kinds.MACHINE_POOL, machine_pool, {"annotations": annotations}, {"replicas": replicas - 1}
        )
        name = resources.name(machine)
        self._events.note(machine_pool, "MachineRemoved", f"Machine {name} was deleted: {replicas - 1} replicas")
        return shrunk

    async def _still_there(self, removed: list[str]) -> list[str]:
        """A Machine may be gone before its UID was taken from the list: the operator was away, or slower than Cluster API."""
        listing = await self._kube.list(kinds.MACHINE, namespace=self._namespace)
        existing = {resources.uid(each) for each in listing.items}
        return [each for each in removed if each in existing]

    async def _insist(self, machine_pool: Object, shard: Shard, event: pb.InstanceEvent) -> float | None:
        """A pool that grows again keeps instances that leave for its size. This one goes, whatever the size: its deletion is
        requested by name. But not before the shard has the smaller size and has had time to remove it: the group would
        replace it, and then shrink by another instance."""
        if event.reason == "requested" or event.state == "deleting":
            return None  # the end of the instance triggers the next reconcile
        if event.state in COUNTED:
            if not await self._has_shrunk(machine_pool, shard, event.group):
                self._shrunk_since.pop(event.instance_id, None)
                return SHRINKING_SECONDS
            now = self._clock.monotonic()
            if now - self._shrunk_since.setdefault(event.instance_id, now) < SHRINKING_SECONDS:
                return SHRINKING_SECONDS
        try:
            await shard.delete_instance(event.instance_id)
        except ShardRefusedError as refusal:
            if refusal.code != "NOT_FOUND":
                raise errors.ConflictError(str(refusal)) from refusal  # retried with growing delays
        return None

    async def _has_shrunk(self, machine_pool: Object, shard: Shard, group: str) -> bool:
        """Whether the replicas are divided and this shard has its part. Read from the API server: a mirror that lags would
        show the sizes of before as done."""
        found = shard.groups.get(group)
        if pools.replicas_of(machine_pool) is None:
            return True  # not sized here: the shard replaces it
        listing = await self._kube.list(kinds.NSTANCE_SHARD_GROUP, namespace=self._namespace)
        name = resources.infrastructure(machine_pool).get("name", "")
        sizes = pools.current_sizes(each for each in listing.items if pools.pool_of(each) == name)
        limit = pool_limits.limit_of(self._find(self._pools, name) or {}, self._shards)
        replicas = pools.wanted_replicas(machine_pool, limit, sizes)
        return sum(sizes.values()) == replicas and found is not None and sizes.get(shard.name) == found.size

    async def _delete_both(self, item: Object, machine: Object | None) -> float | None:
        """Its instance is gone, or it has no pool any more."""
        await self._let_go(machine)
        if resources.is_being_deleted(item):
            await self._release(item)
        else:
            await self._delete(kinds.NSTANCE_MACHINE, item)
        return None

    async def _let_go(self, machine: Object | None) -> None:
        """Deletes the Machine, marked: the pool may be back before the Machine is gone, and then this deletion must not
        look like a person's."""
        if machine is None or resources.is_being_deleted(machine):
            return
        change: Object = {"annotations": {RELEASED_ANNOTATION: "true"}}
        await resources.patch_unchanged(self._kube, kinds.MACHINE, machine, change)
        await self._delete(kinds.MACHINE, machine)

    async def _release(self, item: Object) -> None:
        """Lets the object go; its instance is not touched. The Machine follows when this one is gone."""
        if resources.has_finalizer(item):
            await resources.remove_finalizer(self._kube, kinds.NSTANCE_MACHINE, item)

    async def _release_machine(self, machine: Object) -> None:
        for machine_pool in self._machine_pools.objects.values():
            if (uid := resources.uid(machine)) in (removed := removed_machines(machine_pool)):
                left = ",".join(each for each in removed if each != uid) or None
                change: Object = {"annotations": {REMOVED_ANNOTATION: left}}
                await resources.patch_unchanged(self._kube, kinds.MACHINE_POOL, machine_pool, change)
        if resources.has_finalizer(machine):
            await resources.remove_finalizer(self._kube, kinds.MACHINE, machine)


def _decisive(item: Object | None) -> tuple[object, ...]:
    """What of an owner decides about all members of its pool."""
    if item is None:
        return ()
    owners = tuple(each.get("uid") for each in item["metadata"].get("ownerReferences") or ())
    phase = bool(resources.status(item).get("phase"))
    paused = resources.is_paused(item, item)
    node = json.dumps(node_settings.settings_of(item), sort_keys=True)
    return (resources.uid(item), resources.is_being_deleted(item), paused, owners, phase, node)
