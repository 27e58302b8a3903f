"""Syncs an NstanceMachine with its on-demand instance. Those of pools are in `pool_machines`.

Shard and instance ID are chosen once and stored in the object together with the finalizer, in one write, before the shard
is called. A crash at any point repeats the same call with the same ID, so it never makes two instances. The instance is
deleted before the object, and an instance that the server deleted takes its Machine with it. The traps: an ID that a shard
does not know proves nothing while the shard is not synced, or while a call may still be on its way. And Cluster API writes an
object that it made from a template once more before it creates the Machine: if the operator is faster, it gives up and
makes another one, and nobody ever deletes the first.
"""

import uuid
from collections.abc import Callable, Collection, Mapping

from nstance.kube import kinds
from nstance.kube.port import Object
from nstance.model import ids
from nstance.operator.controllers import node_settings, resources
from nstance.operator.controllers.context import Controller, ControllerContext
from nstance.operator.controllers.machine_objects import (
    CREATE_FAILED,
    ENDED,
    LEAVING,
    InstanceState,
    condition,
    exclude_from_drains,
    listed_provider_id,
    machine_status,
    node_annotations,
    pool_instance,
    update_machine,
)
from nstance.operator.controllers.nodes import INSTANCE_LABEL, Nodes, lookup_keys
from nstance.operator.controllers.resources import Condition
from nstance.operator.controllers.shard_groups import (
    ABANDON_ANNOTATION,
    REJECTED_RETRY_SECONDS,
    unreachable_message,
)
from nstance.operator.shards.ports import Shard, ShardRefusedError, Shards
from nstance.v1 import operator_pb2 as pb

UUID_ANNOTATION = "nstance.dev/instance-uuid"
SHARD_ANNOTATION = "nstance.dev/shard"
CLONED_FROM = "cluster.x-k8s.io/cloned-from-name"  # Cluster API made it from this template
POD_ANNOTATION = "nstance.dev/pod"  # namespace and name of the pod that it was created for
FAILURE_REASONS = frozenset({CREATE_FAILED, "NoShard", "NoGroup", "ConfigInvalid", "Refused"})  # of Ready


def group_of(item: Object) -> str:
    """`group`, or its other spelling `groupRef`, as a name or as an object with one."""
    spec = resources.spec(item)
    reference = spec.get("groupRef")
    named = reference.get("name", "") if isinstance(reference, Mapping) else reference
    group = spec.get("group") or named
    return group if isinstance(group, str) else ""


def is_requested(item: Object) -> bool:
    """Whether an instance may exist already."""
    return UUID_ANNOTATION in resources.annotations(item)


def shard_of(item: Object) -> str:
    """The shard that has its instance, else the chosen one. `kubectl replace` may remove the annotation."""
    return resources.status(item).get("shard") or resources.annotations(item).get(SHARD_ANNOTATION, "")


def choose_shard(
    shards: Shards, group: str, wanted: str, *, reserved: Collection[tuple[str, str]] = ()
) -> tuple[str, str]:
    """The shard for a new instance, or why there is none: the wanted one, else the one with the fewest on-demand
    instances of the group. `reserved` has shard and group of those that are chosen and not created yet; without it, many
    machines that are created at once would all go to one shard."""
    if wanted:
        found = shards.get(wanted) is not None
        return (wanted, "") if found else ("", f"there is no shard {wanted!r} in the operator's configuration")
    candidates: list[Shard] = [
        shard
        for name in shards.names()
        if (shard := shards.get(name)) is not None and shard.synced and group in shard.groups
    ]
    if not candidates:
        return "", f"no shard that can be reached has a group {group!r}"

    def load(shard: Shard) -> int:
        existing = sum(each.group == group and each.on_demand for each in shard.instances.values())
        return existing + sum(each == (shard.name, group) for each in reserved)

    return min(candidates, key=load).name, ""


class Machines(Controller):
    def __init__(self, context: ControllerContext, nodes: Nodes) -> None:
        super().__init__(context)
        self._nodes = nodes
        self._machines, self._items, self._pools = map(
            self._mirror, (kinds.MACHINE, kinds.NSTANCE_MACHINE, kinds.NSTANCE_MACHINE_POOL)
        )
        # By uid: shard, group and UUID, until the shard reports it. A mirror that lags shows an object as not chosen that is:
        # it must not count twice, nor be taken back when its second write fails.
        self._reserved: dict[str, tuple[str, str, int]] = {}
        self._missing_since: dict[str, float] = {}  # by uid: deleted objects whose instance the shard does not have
        self._by_lookup_key: dict[str, str] = {}
        self._requested: dict[str, Object] = {}  # the NstanceMachines that are no pool's, by name: few of many
        self.queue = context.queue("machines", self._reconcile, workers=16)
        self._items.listen(self._on_item_change)
        self._machines.listen(self._on_machine_change)
        self._clusters.listen(lambda old, new: self._add_where(lambda item: True))
        context.cluster_api.listen(lambda: self._add_where(lambda item: True))
        self._pools.listen(self._on_pool_change)
        nodes.listen(self._add_by_lookup_key)

    async def run(self) -> None:
        await self.queue.run()

    # ---- changes

    def _on_pool_change(self, old: Object | None, new: Object | None) -> None:
        if node_settings.settings_of(old) != node_settings.settings_of(new):
            self._add_where(lambda item: True)

    def _on_item_change(self, old: Object | None, new: Object | None) -> None:
        name = resources.name(new or old or {})
        self._requested.pop(name, None)
        if pool_instance(new or old or {}):
            return  # the pool's
        if new is not None:
            self._requested[name] = new
        for key in _lookup_keys(old):
            self._by_lookup_key.pop(key, None)
        if new is not None:
            self._by_lookup_key.update(dict.fromkeys(_lookup_keys(new), resources.name(new)))
        if new is None and old is not None:
            self._missing_since.pop(resources.uid(old), None)
            self._reserved.pop(resources.uid(old), None)
        self.queue.add(name)

    def _on_machine_change(self, old: Object | None, new: Object | None) -> None:
        reference = resources.infrastructure(new or old or {})
        if reference.get("kind") == kinds.NSTANCE_MACHINE.name:
            self.queue.add(str(reference.get("name", "")))

    def _add_by_lookup_key(self, key: str) -> None:
        if name := self._by_lookup_key.get(key):
            self.queue.add(name)

    def _add_where(self, matches: Callable[[Object], bool]) -> None:
        for name, item in self._requested.items():
            if matches(item):
                self.queue.add(name)

    def on_shard_change(self, shard: str) -> None:
        self._add_where(lambda item: shard_of(item) in ("", shard))

    def on_group_change(self, shard: str, group: str) -> None:
        self._add_where(lambda item: not shard_of(item) and group_of(item) == group)

    def on_instance_change(self, shard: str, event: pb.InstanceEvent) -> None:
        if event.on_demand:
            number = ids.uuid_of(ids.InstanceId(event.instance_id))
            for uid in [uid for uid, each in self._reserved.items() if number in self._instance_uuids(each[2])]:
                del self._reserved[uid]
        self._add_by_lookup_key(event.instance_id)

    # ---- reconciling

    async def _reconcile(self, name: str) -> float | None:
        item = self._find(self._items, name)
        if item is None or pool_instance(item):
            return None
        machine = resources.find_by_infrastructure(self._machines.objects.values(), kinds.NSTANCE_MACHINE, name)
        if self._is_paused(item, machine):
            await self._show_paused(kinds.NSTANCE_MACHINE, item)
            return None
        if machine is not None:
            await exclude_from_drains(self._kube, machine)
        if resources.is_being_deleted(item):
            return await self._finalize(item)
        is_copy = self._is_copy(item)
        is_chosen = {UUID_ANNOTATION, SHARD_ANNOTATION} <= resources.annotations(item).keys()
        if machine is None and not is_requested(item) and CLONED_FROM in resources.annotations(item):
            return None  # its Machine triggers the next reconcile
        if is_copy or not is_chosen or not resources.has_finalizer(item):
            return await self._choose(item, machine, is_copy=is_copy)
        if machine is not None:
            await resources.add_owner(self._kube, kinds.NSTANCE_MACHINE, item, machine, kinds.MACHINE)
        shard = self._shards.get(shard_of(item))
        if shard is None or not shard.synced:
            await self._show_unreachable(item, shard)
            return None
        try:
            instance = await self._get_or_create(item, shard)
        except ShardRefusedError as refusal:
            await self._reject(item, "Refused", str(refusal))
            return REJECTED_RETRY_SECONDS
        if instance is None or instance.state == "deleted":
            await self._delete_with_machine(item, machine, instance)
            return None
        await self._show(item, machine, shard, instance)
        return None

    def _is_copy(self, item: Object) -> bool:
        """Whether it was created from another one's YAML, with its UUID: that instance belongs to the other one."""
        number = resources.annotations(item).get(UUID_ANNOTATION)
        if not number or resources.status(item).get("instanceID"):
            return False
        return any(
            resources.annotations(other).get(UUID_ANNOTATION) == number and _seniority(other) < _seniority(item)
            for other in self._items.objects.values()
        )

    async def _choose(self, item: Object, machine: Object | None, *, is_copy: bool) -> float | None:
        """Stores shard and UUID. A copy gets its own."""
        group = group_of(item)
        if not group:
            await self._reject(item, "NoGroup", "spec.group is missing")
            return None
        if problem := resources.find_malformed_field(resources.spec(item), required=(), texts=("instanceType",)):
            await self._reject(item, "ConfigInvalid", problem)
            return None
        wanted = resources.spec(item).get("failureDomain") or resources.spec(machine or {}).get("failureDomain") or ""
        chosen = "" if is_copy else shard_of(item)
        before = self._reserved.get(resources.uid(item))
        if before is not None and before[1] == group and wanted in ("", before[0]) and self._shards.get(before[0]):
            chosen = chosen or before[0]
        else:
            before = None
        reserved = [each[:2] for uid, each in self._reserved.items() if uid != resources.uid(item)]
        shard, problem = (chosen, "") if chosen else choose_shard(self._shards, group, wanted, reserved=reserved)
        if not shard:
            shards = [self._shards.get(name) for name in self._shards.names()]
            if wanted or all(each is not None and each.synced for each in shards):
                await self._reject(item, "NoShard", problem)
            else:  # an unsynced shard may have the group, so this is no failure yet
                await self._write(item, {}, Condition("Ready", False, "ShardUnreachable", problem))
            return REJECTED_RETRY_SECONDS
        if known := resources.status(item).get("instanceID"):
            number = ids.uuid_of(ids.InstanceId(known))
        elif before is not None:
            number = before[2]
        else:
            number = ids.uuid7(int(self._clock.wall() * 1000), self._context.rng.bits(74))
        chosen_id = (not is_copy and resources.annotations(item).get(UUID_ANNOTATION)) or str(uuid.UUID(int=number))
        if not chosen:
            self._reserved[resources.uid(item)] = shard, group, number
        await resources.add_finalizer(
            self._kube,
            kinds.NSTANCE_MACHINE,
            item,
            {UUID_ANNOTATION: chosen_id, SHARD_ANNOTATION: shard},
            spec={"providerID": None} if is_copy else {},
        )
        return None  # this change triggers the next reconcile

    async def _get_or_create(self, item: Object, shard: Shard) -> InstanceState | None:
        """The instance's state; it is created if the shard never reported one. None: the shard has deleted its record."""
        known = resources.status(item).get("instanceID")
        if known:
            if (event := shard.instances.get(known)) is not None:
                return event
            try:
                return await shard.get_instance(known)
            except ShardRefusedError as refusal:
                if refusal.code == "NOT_FOUND":
                    return None
                raise
        spec = resources.spec(item)
        instance = await shard.create_instance(
            pb.CreateInstanceRequest(
                group=group_of(item),
                uuid=resources.annotations(item)[UUID_ANNOTATION],
                instance_type=spec.get("instanceType", ""),
                vars=spec.get("vars") or {},
                requester=resources.annotations(item).get(POD_ANNOTATION, "").partition("/")[0],
            )
        )
        self._events.note(item, "InstanceRequested", f"{instance.instance_id} on shard {shard.name}")
        return instance

    async def _show(self, item: Object, machine: Object | None, shard: Shard, instance: InstanceState) -> None:
        await self._write(item, machine_status(instance, shard.name), condition(instance))
        stored = resources.provider_id(item)
        node = self._nodes.find(instance.instance_id, instance.provider_id)
        vm = listed_provider_id(instance, node, stored)
        if vm != stored:
            await self._patch_spec(kinds.NSTANCE_MACHINE, item, {"providerID": vm})
        stands_in = machine is not None and not self._has_cluster_api_controllers(machine)
        if node is not None:
            named = node_annotations(machine) if machine is not None and stands_in else {}
            await self._apply_settings(node, item, shard.name, instance.instance_id, named)
        if machine is not None and stands_in and vm:
            await update_machine(self._kube, machine, instance, provider_id=vm, node=node)

    async def _apply_settings(
        self, node: Object, item: Object, shard: str, instance: str, annotations: Mapping[str, str]
    ) -> None:
        """Those of the pool of its group. The label is what the pod that it was made for is bound by."""
        of_group = (
            each for each in self._pools.objects.values() if resources.spec(each).get("group") == group_of(item)
        )
        pool = next((each for each in of_group if shard in (resources.spec(each).get("shards") or ())), None)
        labels = {INSTANCE_LABEL: instance} if POD_ANNOTATION in resources.annotations(item) else {}
        await node_settings.apply(self._context.workload, node, node_settings.settings_of(pool), labels, annotations)

    async def _delete_with_machine(self, item: Object, machine: Object | None, instance: InstanceState | None) -> None:
        """Expired, reclaimed by the cloud or deleted by hand: the owner of the Machine decides about a new one."""
        reason = f" ({instance.reason})" if instance is not None and instance.reason else ""
        message = f"the server deleted the instance{reason}"
        deleted = Condition("ServerDeleted", True, "Deleted", message)
        ready = Condition("Ready", False, "ServerDeleted", message)
        await self._write(item, {"ready": False, "state": "deleted"}, deleted, ready)
        self._events.note(item, "ServerDeleted", message)
        await self._delete(kinds.MACHINE, machine)
        await self._delete(kinds.NSTANCE_MACHINE, item)

    # ---- deletion

    async def _finalize(self, item: Object) -> float | None:
        """Removes the finalizer once the shard confirmed that there is no instance, and will be none."""
        if not resources.has_finalizer(item):
            return None
        annotations = resources.annotations(item)
        may_exist = UUID_ANNOTATION in annotations or resources.status(item).get("instanceID")
        if annotations.get(ABANDON_ANNOTATION) == "true":
            self._events.note(item, "Abandoned", "abandoned: what its shard has of this machine stays there")
        elif may_exist and shard_of(item) and not self._is_copy(item):
            shard = self._shards.get(shard_of(item))
            if shard is None or not shard.synced:
                await self._show_unreachable(item, shard)
                return None
            number = _parse_uuid(annotations.get(UUID_ANNOTATION, ""))
            if (delay := await self._delete_instance(item, shard, number)) is not None:
                return delay
        self._missing_since.pop(resources.uid(item), None)
        await resources.remove_finalizer(self._kube, kinds.NSTANCE_MACHINE, item)
        return None

    async def _delete_instance(self, item: Object, shard: Shard, number: int | None) -> float | None:
        """When to reconcile again, or None if there is nothing left to delete."""
        known = resources.status(item).get("instanceID")
        if not known:
            # Perhaps requested, but the answer was lost: found by the UUID that was chosen.
            wanted = self._instance_uuids(number)
            known = next((id for id in shard.instances if ids.uuid_of(ids.InstanceId(id)) in wanted), None)
        if known is None:
            now = self._clock.monotonic()
            settled = (
                self._missing_since.setdefault(resources.uid(item), now) + self._context.settings.waits.call_settled
            )
            if (remaining := settled - now) > 0 or number is None:
                return remaining if remaining > 0 else None
        try:
            instance = await self._find_instance(shard, known, number)
            known = instance.instance_id
            if instance.state in ENDED:
                return None
            if instance.state not in LEAVING:
                instance = await shard.delete_instance(known)
            status = {"instanceID": known, "ready": False, "state": instance.state}
            await self._write(item, status, condition(instance))
        except ShardRefusedError as refusal:
            if refusal.code in ("NOT_FOUND", "INVALID_ARGUMENT"):  # the latter: a UUID that no shard accepts
                return None
            await self._write(item, {}, Condition("Ready", False, "Refused", str(refusal)))
        return REJECTED_RETRY_SECONDS / 2  # usually the deletion's event comes first

    @staticmethod
    async def _find_instance(shard: Shard, known: str | None, number: int | None) -> InstanceState:
        """By its ID, else by the UUID that was chosen: a shard reports only what is in its journal, but when it is asked, it
        does not deny what it has decided and is still writing."""
        if known is None:
            return await shard.find_requested(str(uuid.UUID(int=number)))
        event = shard.instances.get(known)
        return event if event is not None else await shard.get_instance(known)

    def _instance_uuids(self, chosen: int | None) -> tuple[int, ...]:
        """In the ID of the instance that is requested with this UUID. Older servers take it as it is."""
        return () if chosen is None else (ids.requested_uuid(self._context.settings.tenant, chosen), chosen)

    async def _show_unreachable(self, item: Object, shard: Shard | None) -> None:
        message = unreachable_message(item, shard_of(item), shard)
        await self._write(item, {}, Condition("Ready", None, "ShardUnreachable", message))

    async def _reject(self, item: Object, reason: str, message: str) -> None:
        if resources.condition(item, "Ready").get("reason") != reason:
            self._events.note(item, "ProviderError" if reason == "Refused" else reason, message, warning=True)
        await self._write(item, {}, Condition("Ready", False, reason, message))

    async def _write(self, item: Object, status: Object, *conditions: Condition) -> None:
        await self._write_status(kinds.NSTANCE_MACHINE, item, status, conditions)


def _lookup_keys(item: Object | None) -> set[str]:
    if item is None:
        return set()
    instance = resources.status(item).get("instanceID", "")
    return lookup_keys(names=(instance,), provider_id=resources.provider_id(item))


def _seniority(item: Object) -> tuple[bool, str, str]:
    """Sorts the older first, and before all one that has its instance."""
    has_instance = bool(resources.status(item).get("instanceID"))
    return not has_instance, item["metadata"].get("creationTimestamp", ""), resources.name(item)


def _parse_uuid(text: str) -> int | None:
    """None if somebody wrote something else there: then no shard has made an instance of it."""
    try:
        return uuid.UUID(text).int
    except ValueError:
        return None
