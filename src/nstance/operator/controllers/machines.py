"""An NstanceMachine and its instance.

Which shard, and under which ID, is chosen once and stored in the object together with the finalizer, in one write, before
the shard is asked: a crash at any point ends in the same question with the same ID, and never in two instances. The
instance goes before the object does. An instance that the server deleted takes its Machine with it. The trap: an ID that
a shard does not know proves nothing while that shard is silent, or while a question may still be on its way.
"""

import contextlib
import uuid
from collections.abc import Callable, Collection, Mapping

from nstance.kube import errors, kinds
from nstance.kube.port import Object
from nstance.kube.queue import Queue
from nstance.model import ids
from nstance.operator.controllers import nodes as node_names
from nstance.operator.controllers import resources
from nstance.operator.controllers.context import ControllerContext
from nstance.operator.controllers.nodes import Nodes
from nstance.operator.controllers.resources import Condition
from nstance.operator.controllers.shard_groups import ABANDON_ANNOTATION, REFUSED_RETRY
from nstance.operator.shards.null_listener import NullListener
from nstance.operator.shards.ports import Shard, ShardRefusedError, Shards, ShardUnreachableError
from nstance.v1 import operator_pb2 as pb

UUID_ANNOTATION = "nstance.dev/instance-uuid"
SHARD_ANNOTATION = "nstance.dev/shard"
CREATE_FAILED = "CreateFailed"
FAILURE_REASONS = frozenset({CREATE_FAILED, "NoShard", "NoGroup", "ConfigInvalid", "Refused"})  # reasons of Ready
SETTLED = 15.0  # longer than a call to a shard may take

_ENDED = frozenset({"deleted", "failed"})
_LEAVING = frozenset({"draining", "deleting"})
Said = pb.InstanceStatus | pb.InstanceEvent


def group_of(item: Object) -> str:
    """`group`, or another spelling of it: `groupRef`, as a name or as an object with one."""
    told = resources.spec(item)
    reference = told.get("groupRef")
    named = reference.get("name", "") if isinstance(reference, Mapping) else reference
    found = told.get("group") or named
    return found if isinstance(found, str) else ""


def is_asked_for(item: Object) -> bool:
    """Whether an instance may exist already."""
    return UUID_ANNOTATION in resources.annotations(item)


def shard_of(item: Object) -> str:
    """The shard of its instance: the one that has it, else the one that was chosen. A note may be lost to `kubectl replace`."""
    return resources.status(item).get("shard") or resources.annotations(item).get(SHARD_ANNOTATION, "")


def choose_shard(
    shards: Shards, group: str, wanted: str, *, promised: Collection[tuple[str, str]] = ()
) -> tuple[str, str]:
    """The shard for a new instance, or why there is none: the wanted one, else the one that has the fewest of the group's
    on-demand instances. `promised`: shard and group of those that are chosen and not made yet, or many machines that are
    made at once would all go to one shard."""
    if wanted:
        return (
            (wanted, "")
            if shards.get(wanted)
            else ("", f"there is no shard {wanted!r} in the operator's configuration")
        )
    able: list[Shard] = [
        link
        for name in shards.names()
        if (link := shards.get(name)) is not None and link.synced and group in link.groups
    ]
    if not able:
        return "", f"no shard that can be reached has a group {group!r}"

    def burden(link: Shard) -> int:
        here = sum(each.group == group and each.on_demand for each in link.instances.values())
        return here + sum(each == (link.name, group) for each in promised)

    return min(able, key=burden).name, ""


def addresses(said: Said) -> list[Object]:
    found = (("InternalIP", said.ipv4), ("InternalIP", said.ipv6), ("Hostname", said.hostname))
    return [{"type": kind, "address": address} for kind, address in found if address]


def condition(said: Said) -> Condition:
    if said.state == "running":
        # An older server says nothing of readiness: there, what runs is ready.
        return Condition("Ready", not said.not_ready, "NotReady" if said.not_ready else "Running", said.not_ready)
    if isinstance(said, pb.InstanceStatus) and said.state == "failed":  # an event of it is the last one heard
        return Condition("Ready", False, CREATE_FAILED, f"{said.reason}: {said.message}")
    if said.state in _LEAVING:
        return Condition("Ready", False, "Leaving", said.reason)
    return Condition("Ready", False, "Starting", f"the instance is {said.state}")


class Machines(NullListener):
    def __init__(self, parts: ControllerContext, nodes: Nodes) -> None:
        self._kube, self._clock, self._rng, self._shards = parts.kube, parts.clock, parts.rng, parts.shards
        self._nodes, self._events = nodes, parts.events
        self._namespace = parts.settings.namespace
        self._cluster = (self._namespace, parts.settings.name)
        self._clusters, self._machines, self._items = (
            parts.mirrors.of(kind, namespace=self._namespace)
            for kind in (kinds.CLUSTER, kinds.MACHINE, kinds.NSTANCE_MACHINE)
        )
        self._promised: dict[int | None, tuple[str, str]] = {}  # by number: shard and group, until the shard shows it
        self._first_missed: dict[str, float] = {}  # by uid: since when a leaving one's instance is not to be found
        self.queue = Queue(
            "machines",
            self._reconcile,
            clock=parts.clock,
            rng=parts.rng,
            workers=16,
            expected=(errors.KubeError, ShardUnreachableError),
            report=parts.report,
        )
        self._by_trace: dict[str, str] = {}
        self._items.listen(self._item_changed)
        self._machines.listen(self._machine_changed)
        self._clusters.listen(lambda old, new: self._add_all(lambda item: True))
        nodes.listen(self._node_changed)

    async def run(self) -> None:
        await self.queue.run()

    # ---- news

    def _item_changed(self, old: Object | None, new: Object | None) -> None:
        for trace in _traces(old):
            self._by_trace.pop(trace, None)
        if new is not None:
            self._by_trace.update(dict.fromkeys(_traces(new), resources.name(new)))
        if new is None and old is not None:
            self._first_missed.pop(resources.uid(old), None)
            self._promised.pop(_number(resources.annotations(old).get(UUID_ANNOTATION, "")), None)
        self.queue.add(resources.name(new or old or {}))

    def _machine_changed(self, old: Object | None, new: Object | None) -> None:
        reference = resources.infrastructure(new or old or {})
        if reference.get("kind") == kinds.NSTANCE_MACHINE.name:
            self.queue.add(str(reference.get("name", "")))

    def _node_changed(self, trace: str) -> None:
        if name := self._by_trace.get(trace):
            self.queue.add(name)

    def _add_all(self, wanted: Callable[[Object], bool]) -> None:
        for item in self._items.objects.values():
            if wanted(item):
                self.queue.add(resources.name(item))

    def shard_changed(self, shard: str) -> None:
        self._add_all(lambda item: shard_of(item) in ("", shard))

    def group_changed(self, shard: str, group: str) -> None:
        self._add_all(lambda item: not shard_of(item) and group_of(item) == group)

    def instance_changed(self, shard: str, event: pb.InstanceEvent) -> None:
        if event.on_demand:
            self._promised.pop(ids.uuid_of(ids.InstanceId(event.instance_id)), None)
        if name := self._by_trace.get(event.instance_id):
            self.queue.add(name)

    # ----

    async def _reconcile(self, name: str) -> float | None:
        item = self._items.objects.get((self._namespace, name))
        if item is None:
            return None
        machine = resources.find_by_infrastructure(self._machines.objects.values(), kinds.NSTANCE_MACHINE, name)
        if resources.is_paused(self._clusters.objects.get(self._cluster), item, machine):
            return None
        if resources.is_being_deleted(item):
            return await self._leave(item)
        copied = self._is_copy(item)
        if (
            copied
            or not resources.has_finalizer(item)
            or not {UUID_ANNOTATION, SHARD_ANNOTATION} <= resources.annotations(item).keys()
        ):
            return await self._choose(item, machine, anew=copied)
        if machine is not None:
            await resources.add_owner(self._kube, kinds.NSTANCE_MACHINE, item, machine, kinds.MACHINE)
        shard = self._shards.get(shard_of(item))
        if shard is None or not shard.synced:
            await self._tell_unreachable(item, shard)
            return None
        try:
            said = await self._ask(item, shard)
        except ShardRefusedError as refusal:
            await self._refuse(item, "Refused", str(refusal))
            return REFUSED_RETRY
        if said is None or said.state == "deleted":
            await self._server_deleted(item, machine, said)
            return None
        await self._show(item, machine, shard, said)
        return None

    def _is_copy(self, item: Object) -> bool:
        """Whether its number is that of another one, by whose YAML it was made: that one's instance is not its own."""
        number = resources.annotations(item).get(UUID_ANNOTATION)
        if not number or resources.status(item).get("instanceID"):
            return False
        return any(
            resources.annotations(other).get(UUID_ANNOTATION) == number and _seniority(other) < _seniority(item)
            for other in self._items.objects.values()
        )

    async def _choose(self, item: Object, machine: Object | None, *, anew: bool) -> float | None:
        group = group_of(item)
        if not group:
            await self._refuse(item, "NoGroup", "spec.group is missing")
            return None
        if problem := resources.find_malformed_field(resources.spec(item), required=(), texts=("instanceType",)):
            await self._refuse(item, "ConfigInvalid", problem)
            return None
        wanted = resources.spec(item).get("failureDomain") or resources.spec(machine or {}).get("failureDomain") or ""
        chosen = "" if anew else shard_of(item)
        promised = self._promised.values()
        shard, problem = (chosen, "") if chosen else choose_shard(self._shards, group, wanted, promised=promised)
        if not shard:
            links = [self._shards.get(name) for name in self._shards.names()]
            if wanted or all(link is not None and link.synced for link in links):
                await self._refuse(item, "NoShard", problem)
            else:  # one that has not answered yet may have it: nothing to be alarmed about
                await self._write(item, {}, [Condition("Ready", False, "ShardUnreachable", problem)])
            return REFUSED_RETRY
        if known := resources.status(item).get("instanceID"):
            number = ids.uuid_of(ids.InstanceId(known))
        else:
            number = ids.uuid7(int(self._clock.wall() * 1000), self._rng.bits(74))
        chosen_id = (not anew and resources.annotations(item).get(UUID_ANNOTATION)) or str(uuid.UUID(int=number))
        if not chosen:
            self._promised[number] = shard, group
        try:
            await resources.add_finalizer(
                self._kube,
                kinds.NSTANCE_MACHINE,
                item,
                {UUID_ANNOTATION: chosen_id, SHARD_ANNOTATION: shard},
                spec={"providerID": None} if anew else {},
            )
        except errors.KubeError:
            self._promised.pop(number, None)
            raise
        return None  # the change comes back, and with it the next look

    async def _ask(self, item: Object, shard: Shard) -> Said | None:
        """What the shard says of the instance; it is made if the shard was never asked. None: the shard has forgotten it."""
        known = resources.status(item).get("instanceID")
        if known:
            if (event := shard.instances.get(known)) is not None:
                return event
            try:
                return await shard.instance(known)
            except ShardRefusedError as refusal:
                if refusal.code == "NOT_FOUND":
                    return None
                raise
        spec = resources.spec(item)
        said = await shard.create_instance(
            pb.CreateInstanceRequest(
                group=group_of(item),
                uuid=resources.annotations(item)[UUID_ANNOTATION],
                instance_type=spec.get("instanceType", ""),
                vars=spec.get("vars") or {},
            )
        )
        self._events.note(item, "InstanceRequested", f"{said.instance_id} on shard {shard.name}")
        return said

    async def _show(self, item: Object, machine: Object | None, shard: Shard, said: Said) -> None:
        running = said.state == "running"
        told: Object = {
            "instanceID": said.instance_id,
            "shard": shard.name,
            "failureDomain": shard.name,
            "state": said.state,
            "ready": running,
        }
        if found := addresses(said):
            told["addresses"] = found
        if running:
            told["initialization"] = {"provisioned": True}
        ready = condition(said)
        await self._write(item, told, [ready])
        held = resources.provider_id(item)
        node = self._nodes.find(said.instance_id, said.provider_id)
        # Once its node has named it, it keeps that name: Cluster API would look for a node of another one.
        vm = said.provider_id and (resources.provider_id(node or {}) or held or said.provider_id)
        if vm != held:
            await self._kube.patch(
                kinds.NSTANCE_MACHINE,
                resources.name(item),
                {"spec": {"providerID": vm}},
                namespace=self._namespace,
            )
        tended = resources.has_cluster_api_controllers(machine, self._clusters.objects.get(self._cluster))
        if machine is not None and not tended and vm:
            await self._stand_in(machine, said, vm, node)

    async def _stand_in(self, machine: Object, said: Said, vm: str, node: Object | None) -> None:
        """What Cluster API's own controller writes where it runs."""
        if resources.spec(machine).get("providerID") != vm:
            await self._kube.patch(
                kinds.MACHINE,
                resources.name(machine),
                {"spec": {"providerID": vm}},
                namespace=self._namespace,
            )
        told: Object = {"addresses": addresses(said)} if addresses(said) else {}
        if node is not None:
            told["nodeRef"] = {"name": resources.name(node)}
        await resources.write_status(self._kube, kinds.MACHINE, machine, told)

    async def _server_deleted(self, item: Object, machine: Object | None, said: Said | None) -> None:
        """Expired, taken by the cloud, deleted by hand: whoever owns the Machine decides about a new one."""
        why = f"the server deleted the instance{f' ({said.reason})' if said is not None and said.reason else ''}"
        await self._write(
            item,
            {"ready": False, "state": "deleted"},
            [Condition("ServerDeleted", True, "Deleted", why), Condition("Ready", False, "ServerDeleted", why)],
        )
        self._events.note(item, "ServerDeleted", why)
        for kind, each in ((kinds.MACHINE, machine), (kinds.NSTANCE_MACHINE, item)):
            if each is not None and not resources.is_being_deleted(each):
                with contextlib.suppress(errors.NotFoundError, errors.ConflictError):  # gone, or another one by now
                    await self._kube.delete(
                        kind, resources.name(each), namespace=self._namespace, uid=resources.uid(each)
                    )

    # ---- deletion

    async def _leave(self, item: Object) -> float | None:
        """The finalizer goes when the shard has confirmed that there is no instance, and will be none."""
        if not resources.has_finalizer(item):
            return None
        noted = resources.annotations(item)
        if noted.get(ABANDON_ANNOTATION) == "true":
            self._events.note(item, "Abandoned", "whatever its shard has of it stays there")
        elif (
            not self._is_copy(item)
            and shard_of(item)
            and (UUID_ANNOTATION in noted or resources.status(item).get("instanceID"))
        ):
            shard = self._shards.get(shard_of(item))
            if shard is None or not shard.synced:
                await self._tell_unreachable(item, shard)
                return None
            if (again := await self._delete(item, shard, _number(noted.get(UUID_ANNOTATION, "")))) is not None:
                return again
        self._first_missed.pop(resources.uid(item), None)
        await resources.remove_finalizer(self._kube, kinds.NSTANCE_MACHINE, item)
        return None

    async def _delete(self, item: Object, shard: Shard, number: int | None) -> float | None:
        """When to look again, or None if there is nothing left to delete."""
        known = resources.status(item).get("instanceID")
        if not known:
            # Asked for, perhaps, but not heard of: found by the number that we chose.
            known = next((id for id in shard.instances if ids.uuid_of(ids.InstanceId(id)) == number), None)
        if known is None:
            since = self._first_missed.setdefault(resources.uid(item), self._clock.monotonic())
            left = since + SETTLED - self._clock.monotonic()
            return left if left > 0 else None
        try:
            event = shard.instances.get(known)
            said: Said = event if event is not None else await shard.instance(known)
            if said.state in _ENDED:
                return None
            if said.state not in _LEAVING:
                said = await shard.delete_instance(known)
            await self._write(item, {"instanceID": known, "ready": False, "state": said.state}, [condition(said)])
        except ShardRefusedError as refusal:
            if refusal.code == "NOT_FOUND":
                return None
            await self._write(item, {}, [Condition("Ready", False, "Refused", str(refusal))])
        return REFUSED_RETRY / 2  # its deletion is told; this is for what is not

    async def _tell_unreachable(self, item: Object, shard: Shard | None) -> None:
        why = shard.trouble if shard is not None else f"shard {shard_of(item)} is not in the operator's configuration"
        if shard is None and resources.is_being_deleted(item):
            why += f"; if it is gone for good, annotate this with {ABANDON_ANNOTATION}=true"
        await self._write(item, {}, [Condition("Ready", None, "ShardUnreachable", why)])

    async def _refuse(self, item: Object, reason: str, why: str) -> None:
        if not _said(item, reason):
            self._events.note(item, "ProviderError" if reason == "Refused" else reason, why, warning=True)
        await self._write(item, {}, [Condition("Ready", False, reason, why)])

    async def _write(self, item: Object, told: Object, conditions: list[Condition]) -> None:
        merged = resources.merge_conditions(
            resources.status(item).get("conditions"),
            conditions,
            generation=item["metadata"].get("generation", 0),
            now=self._clock.wall(),
        )
        await resources.write_status(self._kube, kinds.NSTANCE_MACHINE, item, told | {"conditions": merged})


def _traces(item: Object | None) -> set[str]:
    if item is None:
        return set()
    known = resources.status(item).get("instanceID", "")
    return node_names.lookup_keys(names=(known,), provider_id=resources.provider_id(item))


def _seniority(item: Object) -> tuple[bool, str, str]:
    """The less, the older: first comes one that has its instance."""
    has_one = bool(resources.status(item).get("instanceID"))
    return not has_one, item["metadata"].get("creationTimestamp", ""), resources.name(item)


def _number(noted: str) -> int | None:
    """None: somebody wrote something else there, and no shard has made an instance of it."""
    try:
        return uuid.UUID(noted).int
    except ValueError:
        return None


def _said(item: Object, reason: str) -> bool:
    return any(each["reason"] == reason for each in resources.status(item).get("conditions", ()))
