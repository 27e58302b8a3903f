"""Deletes the Nodes of VMs that are gone, where neither Cluster API nor a cloud's own software does it.

Otherwise they stay, cordoned and not ready, until a person notices. A Node is annotated with its instance while that one
exists; only an annotated Node is ever deleted, and only when its shard confirms the end of the VM. The traps: a Node of
another tenant looks like one without an instance, so its name, label or provider ID alone proves nothing. An instance may
end before its Node was annotated: then its shard still knows it for a while, and says so when it is asked. And a shard that
has no record of an instance confirms nothing: only a Node that is not ready goes then.
"""

from nstance.kube import errors, kinds
from nstance.kube.port import Object
from nstance.model import ids
from nstance.operator.controllers import resources
from nstance.operator.controllers.context import Controller, ControllerContext
from nstance.operator.controllers.drains import DRAINING_ANNOTATION
from nstance.operator.controllers.machine_objects import ENDED
from nstance.operator.controllers.nodes import INSTANCE_LABEL, Nodes, is_node_of, lookup_keys
from nstance.operator.shards.ports import Shard, ShardRefusedError
from nstance.v1 import operator_pb2 as pb

INSTANCE_ANNOTATION = "nstance.dev/instance"  # {cluster}--{tenant}/{shard}/{instance}


class GoneNodes(Controller):
    def __init__(self, context: ControllerContext, nodes: Nodes) -> None:
        super().__init__(context)
        self._workload, self._nodes = context.workload, nodes
        self._events = context.workload_events
        self._by_lookup_key: dict[str, tuple[str, str]] = {}  # shard and instance
        self._mirrored = context.workload_mirrors.of(kinds.NODE)
        self.queue = context.queue("gone nodes", self._reconcile)
        self._mirrored.listen(self._on_node_change)
        self._clusters.listen(lambda old, new: self._add_all())
        context.cluster_api.listen(self._add_all)

    async def run(self) -> None:
        await self._nodes.wait_synced()
        await self._clusters.synced.wait()
        self._add_all()
        await self.queue.run()

    def _is_enabled(self) -> bool:
        wanted = self._context.settings.delete_nodes
        return not self._has_cluster_api_controllers({}) if wanted is None else wanted

    # ---- changes

    def _add_all(self) -> None:
        for node in self._nodes.all():
            self.queue.add(resources.name(node))

    def _on_node_change(self, old: Object | None, new: Object | None) -> None:
        if new is not None and (old is None or _facts(old) != _facts(new)):  # not for each heartbeat
            self.queue.add(resources.name(new))

    def on_shard_change(self, shard: str) -> None:
        found = self._shards.get(shard)
        for event in found.instances.values() if found is not None else ():
            self._index(shard, event)
        self._add_all()

    def on_instance_change(self, shard: str, event: pb.InstanceEvent) -> None:
        self._index(shard, event)
        node = self._nodes.find(event.instance_id, event.provider_id)
        if node is not None:
            self.queue.add(resources.name(node))

    def _index(self, shard: str, event: pb.InstanceEvent) -> None:
        keys = lookup_keys(names=(event.instance_id,), provider_id=event.provider_id)
        if event.state in ENDED:
            for key in keys:
                self._by_lookup_key.pop(key, None)
        else:
            self._by_lookup_key.update(dict.fromkeys(keys, (shard, event.instance_id)))

    # ---- reconciling

    async def _reconcile(self, name: str) -> float | None:
        node = self._mirrored.objects.get(("", name))
        if node is None or not self._is_enabled():
            return None
        cluster, _, rest = resources.annotations(node).get(INSTANCE_ANNOTATION, "").partition("/")
        if not cluster:
            await self._annotate(node)
            return None
        shard_name, _, instance = rest.partition("/")
        shard = self._shards.get(shard_name)
        if cluster != self._context.settings.name or shard is None or not shard.synced or instance in shard.instances:
            return None
        return await self._delete_node(node, shard, instance)

    async def _annotate(self, node: Object) -> None:
        keys = lookup_keys(
            names=(resources.name(node), resources.labels(node).get(INSTANCE_LABEL, "")),
            provider_id=resources.provider_id(node),
        )
        for shard_name, instance in filter(None, map(self._by_lookup_key.get, keys)):
            shard = self._shards.get(shard_name)
            event = shard.instances.get(instance) if shard is not None else None
            if event is not None and is_node_of(node, instance, event.provider_id):
                await self._write_annotation(node, shard_name, instance)
                return
        if not resources.is_ready(node) or DRAINING_ANNOTATION in resources.annotations(node):
            await self._annotate_ended(node)

    async def _annotate_ended(self, node: Object) -> None:
        """Asks the shards for an instance that they no longer list. Of another tenant's they know nothing."""
        annotations, labels = resources.annotations(node), resources.labels(node)
        named = (annotations.get(DRAINING_ANNOTATION, ""), labels.get(INSTANCE_LABEL, ""), resources.name(node))
        for instance in filter(ids.is_instance_id, dict.fromkeys(named)):
            for shard in filter(None, map(self._shards.get, self._shards.names())):
                if not shard.synced:
                    continue  # when it is, all nodes are looked at again
                try:
                    await shard.get_instance(instance)
                except ShardRefusedError:
                    continue
                await self._write_annotation(node, shard.name, instance)
                return

    async def _write_annotation(self, node: Object, shard: str, instance: str) -> None:
        value = f"{self._context.settings.name}/{shard}/{instance}"
        change = {"metadata": {"annotations": {INSTANCE_ANNOTATION: value}}}
        await self._workload.patch(kinds.NODE, resources.name(node), change)

    async def _delete_node(self, node: Object, shard: Shard, instance: str) -> float | None:
        try:
            if (await shard.get_instance(instance)).state not in ENDED:
                return self._context.settings.waits.vm_gone_check
        except ShardRefusedError as refusal:
            # The record of an instance is removed a while after its end. But a shard whose storage was restored from a
            # backup does not know VMs that run: there the kubelet does.
            if refusal.code != "NOT_FOUND" or resources.is_ready(node):
                return self._context.settings.waits.vm_gone_check
        try:
            await self._workload.delete(kinds.NODE, resources.name(node), uid=resources.uid(node))
        except (errors.NotFoundError, errors.ConflictError):
            return None  # gone, or another Node has its name now
        self._events.note(node, "NodeDeleted", f"the VM of {instance} is gone")
        return None


def _facts(node: Object) -> tuple[object, ...]:
    annotations = resources.annotations(node)
    return (
        resources.uid(node),
        resources.labels(node).get(INSTANCE_LABEL, ""),
        resources.provider_id(node),
        annotations.get(INSTANCE_ANNOTATION, ""),
        annotations.get(DRAINING_ANNOTATION, ""),
        resources.is_ready(node),
    )
