"""Emptying nodes before their VMs are deleted.

Each instance that drains has a task of its own: cordon, evict through the Eviction API, ask again for what a
PodDisruptionBudget refuses, acknowledge when nothing is left. The server keeps the deadline and deletes without us when it
has passed. The traps: a drain that is cancelled must give the node back, also when it was another process that cordoned
it (an annotation remembers); it may begin again while the node is given back, so that cordoning and giving back take
turns; and "no such node" is believed only of a list that was read for the purpose.
"""

import asyncio
import functools
import itertools
import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from nstance.kube import errors, kinds
from nstance.kube.port import Object
from nstance.operator.controllers import resources
from nstance.operator.controllers.context import ControllerContext
from nstance.operator.controllers.nodes import Nodes
from nstance.operator.shards.null_listener import NullListener
from nstance.operator.shards.ports import ShardRefusedError, ShardUnreachableError
from nstance.tasks.backoff import Backoff, retry
from nstance.v1 import operator_pb2 as pb

log = logging.getLogger(__name__)

T = TypeVar("T")

DRAINING_ANNOTATION = "nstance.dev/draining"  # annotation of a node that we cordoned: the instance
MIRROR_POD = "kubernetes.io/config.mirror"
EVICTIONS = 32  # at once, over all nodes
RETRY = Backoff(0.2, 5.0)
POLL = Backoff(0.2, 5.0, factor=1.5)  # between two looks at the pods that are left
_DONE = frozenset({"Succeeded", "Failed"})


def must_evict(pod: Object) -> bool:
    """Not what would come back at once (DaemonSets), what only the node itself can end (mirror pods), or what is done."""
    owners = pod["metadata"].get("ownerReferences") or []
    return not (
        MIRROR_POD in resources.annotations(pod)
        or any(each.get("controller") and each.get("kind") == "DaemonSet" for each in owners)
        or resources.status(pod).get("phase") in _DONE
    )


@dataclass(slots=True)
class _Drain:
    shard: str
    event: pb.InstanceEvent
    started: float
    task: "asyncio.Task[None] | None" = None
    counted: bool = False


class Drains(NullListener):
    def __init__(self, parts: ControllerContext, nodes: Nodes) -> None:
        self._parts = parts
        self._kube, self._clock = parts.workload, parts.clock
        self._nodes, self._events = nodes, parts.workload_events
        self._drains: dict[str, _Drain] = {}  # by instance
        self._evicting = asyncio.Semaphore(EVICTIONS)
        self._running = False
        self._others: set[asyncio.Task[None]] = set()
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()  # by instance

    async def run(self) -> None:
        self._running = True
        for name in self._parts.shards.names():
            self.shard_changed(name)
        try:
            await asyncio.Event().wait()
        finally:
            self._running = False
            tasks = [drain.task for drain in self._drains.values() if drain.task is not None] + list(self._others)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # ---- news

    def shard_changed(self, shard: str) -> None:
        link = self._parts.shards.get(shard)
        if link is None:
            for instance, drain in list(self._drains.items()):
                if drain.shard == shard:
                    self._stop(instance)
            return
        if link.synced:
            for event in link.instances.values():
                self.instance_changed(shard, event)
            if self._running:
                self._spawn(self._give_back_forgotten(shard))

    def instance_changed(self, shard: str, event: pb.InstanceEvent) -> None:
        if not self._running:
            return
        drain = self._drains.get(event.instance_id)
        if event.state == "draining" and event.waits and not event.vm_gone:
            if drain is None:
                drain = self._drains[event.instance_id] = _Drain(shard, event, self._clock.monotonic())
                drain.task = asyncio.create_task(self._watched(drain), name=f"drain {event.instance_id}")
                self._parts.metrics.draining(len(self._drains))
            else:
                drain.event = event
        elif drain is not None and (event.vm_gone or event.state != "draining"):
            self._stop(event.instance_id)
            returned = event.state in ("running", "starting")
            self._ended(drain, "cancelled" if returned else "deadline")
            if returned:
                self._spawn(self._insist(functools.partial(self._give_back, event)))

    def _stop(self, instance: str) -> None:
        drain = self._drains.pop(instance)
        if drain.task is not None:
            drain.task.cancel()
        self._parts.metrics.draining(len(self._drains))

    def _ended(self, drain: _Drain, result: str) -> None:
        if not drain.counted:
            drain.counted = True
            self._parts.metrics.drained(result, self._clock.monotonic() - drain.started)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)
        return task

    def _turn(self, instance: str) -> asyncio.Lock:
        return self._turns.setdefault(instance, asyncio.Lock())

    # ---- one drain

    async def _watched(self, drain: _Drain) -> None:
        instance = drain.event.instance_id
        try:
            result = await self._drain(drain)
        except Exception:
            log.exception("a drain failed unexpectedly; the server's deadline ends it", extra={"instance": instance})
            return
        self._ended(drain, result)

    async def _drain(self, drain: _Drain) -> str:
        event = drain.event
        node = await self._insist(lambda: self._nodes.find_surely(event.instance_id, event.provider_id))
        if node is None:
            log.info("a drained instance has no node", extra={"instance": event.instance_id})
        else:
            name = resources.name(node)
            # Whole, also if the drain is cancelled in the middle: who gives back waits for its turn, and sees the cordon.
            await self._insist(lambda: asyncio.shield(self._spawn(self._cordon(name, event.instance_id))))
            self._events.note(node, "NodeDraining", f"the instance leaves ({event.reason})")
            await self._empty(node)
            self._events.note(node, "NodeDrained", "nothing is left to move")
            log.info("a node is empty", extra={"node": name, "instance": event.instance_id})
        await self._acknowledge(drain)
        return "gone" if node is None else "drained"

    async def _cordon(self, name: str, instance: str) -> None:
        """By what the API server says now, and only if nobody changes it meanwhile: what a person cordoned stays theirs."""
        async with self._turn(instance):
            try:
                found = await self._kube.get(kinds.NODE, name)
                if resources.spec(found).get("unschedulable"):
                    return  # by us before a restart, or by somebody who wants it to stay so
                metadata = {
                    "annotations": {DRAINING_ANNOTATION: instance},
                    "resourceVersion": found["metadata"]["resourceVersion"],
                }
                await self._kube.patch(kinds.NODE, name, {"spec": {"unschedulable": True}, "metadata": metadata})
            except errors.NotFoundError:
                pass  # somebody deleted it; its pods are still to be moved

    async def _empty(self, node: Object) -> None:
        name = resources.name(node)
        told: set[str] = set()
        for looks in itertools.count(1):
            listing = await self._insist(lambda: self._kube.list(kinds.POD, fields=f"spec.nodeName={name}"))
            left = [pod for pod in listing.items if must_evict(pod)]
            if not left:
                return
            refused = await asyncio.gather(*(self._evict(pod) for pod in left if not resources.is_being_deleted(pod)))
            for why in filter(None, refused):
                if why not in told:
                    told.add(why)
                    self._events.note(node, "EvictionRefused", why, warning=True)
            await self._clock.sleep(POLL.delay(looks))

    async def _evict(self, pod: Object) -> str:
        """Why it was refused, or nothing."""
        metadata = pod["metadata"]
        async with self._evicting:
            try:
                await self._kube.evict(metadata["name"], namespace=metadata["namespace"], uid=resources.uid(pod))
            except (errors.NotFoundError, errors.ConflictError):
                pass  # gone, or another pod has its name by now
            except errors.KubeError as problem:
                return f"{metadata['namespace']}/{metadata['name']}: {problem}"
        return ""

    async def _acknowledge(self, drain: _Drain) -> None:
        """Until the shard has heard it: a leader may have died meanwhile, and the next one waits as well."""
        for attempts in itertools.count(1):
            shard = self._parts.shards.get(drain.shard)
            if shard is None:
                return
            try:
                answer = await shard.acknowledge_drained(drain.event.instance_id)
            except ShardUnreachableError:
                await self._clock.sleep(POLL.delay(attempts))
                continue
            except ShardRefusedError as refusal:
                log.info(
                    "a drain is not waited for", extra={"instance": drain.event.instance_id, "reason": str(refusal)}
                )
                return
            if not answer.accepted:
                log.info(
                    "a drain is not waited for", extra={"instance": drain.event.instance_id, "reason": answer.message}
                )
            return

    # ---- giving back

    async def _give_back(self, event: pb.InstanceEvent) -> None:
        if event.instance_id in self._drains:
            return
        node = await self._nodes.find_surely(event.instance_id, event.provider_id)
        if node is not None:
            await self._uncordon(resources.name(node), event.instance_id)

    async def _give_back_forgotten(self, shard: str) -> None:
        """Nodes that were cordoned before a restart, for drains that were cancelled meanwhile."""
        await self._nodes.read()
        link = self._parts.shards.get(shard)
        if link is None:
            return
        for node in self._nodes.all():
            event = link.instances.get(resources.annotations(node).get(DRAINING_ANNOTATION, ""))
            if event is not None and event.state == "running":
                await self._insist(functools.partial(self._uncordon, resources.name(node), event.instance_id))

    async def _uncordon(self, name: str, instance: str) -> None:
        """Only what we cordoned, and only while it does not drain again."""
        async with self._turn(instance):
            if instance in self._drains:
                return
            try:
                found = await self._kube.get(kinds.NODE, name)
                if DRAINING_ANNOTATION in resources.annotations(found):
                    change = {"spec": {"unschedulable": None}, "metadata": {"annotations": {DRAINING_ANNOTATION: None}}}
                    await self._kube.patch(kinds.NODE, name, change)
                    self._events.note(found, "NodeDrainCancelled", "the instance stays after all")
            except errors.NotFoundError:
                pass

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Again and again, ever more slowly: the deadline is the server's."""

        def on_failure(problem: errors.KubeError, failures: int) -> float:
            log.warning("failed to perform a drain step, retrying", extra={"reason": str(problem)})
            return RETRY.delay(failures)

        return await retry(work, clock=self._clock, expected=errors.KubeError, on_failure=on_failure)
