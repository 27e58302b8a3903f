"""Drains nodes before their VMs are deleted.

Each draining instance has a task of its own: cordon, evict through the Eviction API, retry what a PodDisruptionBudget
rejects, acknowledge when no pod is left. The server keeps the deadline and deletes the VM without us once it has passed.
The traps: a cancelled drain must uncordon the node, also if another process cordoned it (an annotation tells). It may start
again while the node is being uncordoned, so cordoning and uncordoning take a lock. And "no such node" is concluded only
from a list that was read for this purpose.
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
from nstance.operator.controllers.context import Controller, ControllerContext
from nstance.operator.controllers.nodes import Nodes
from nstance.operator.controllers.pod_objects import must_evict
from nstance.operator.shards.ports import ShardRefusedError, ShardUnreachableError
from nstance.tasks import background
from nstance.tasks.backoff import Backoff, retry
from nstance.telemetry import trace_ids
from nstance.telemetry.traces import SpanPlan
from nstance.v1 import operator_pb2 as pb

log = logging.getLogger(__name__)

T = TypeVar("T")

DRAINING_ANNOTATION = "nstance.dev/draining"  # of a node that we cordoned: the instance
MAX_EVICTIONS = 32  # at once, over all nodes
RETRY = Backoff(0.2, 5.0)
POLL = Backoff(0.2, 5.0, factor=1.5)  # between two listings of the remaining pods


@dataclass(slots=True)
class _Drain:
    shard: str
    event: pb.InstanceEvent
    started: float
    task: "asyncio.Task[None] | None" = None
    is_counted: bool = False


class Drains(Controller):
    def __init__(self, context: ControllerContext, nodes: Nodes) -> None:
        super().__init__(context)
        self._kube, self._events = context.workload, context.workload_events
        self._nodes = nodes
        self._metrics = context.metrics
        self._tracer = context.tracer
        self._drains: dict[str, _Drain] = {}  # by instance
        self._evictions = asyncio.Semaphore(MAX_EVICTIONS)
        self._running = False
        self._tasks: set[asyncio.Task[None]] = set()  # other than drains
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()  # by instance

    async def run(self) -> None:
        self._running = True
        for name in self._shards.names():
            self.on_shard_change(name)
        try:
            await asyncio.Event().wait()
        finally:
            self._running = False
            drains = [drain.task for drain in self._drains.values() if drain.task is not None]
            await background.end([*drains, *self._tasks])

    # ---- changes

    def on_shard_change(self, shard: str) -> None:
        found = self._shards.get(shard)
        if found is None:
            for instance, drain in list(self._drains.items()):
                if drain.shard == shard:
                    self._stop(instance)
        elif found.synced:
            for event in found.instances.values():
                self.on_instance_change(shard, event)
            if self._running:
                self._spawn(self._uncordon_forgotten(shard))

    def on_instance_change(self, shard: str, event: pb.InstanceEvent) -> None:
        if not self._running:
            return
        drain = self._drains.get(event.instance_id)
        if event.state == "draining" and event.waits and not event.vm_gone:
            if drain is None:
                drain = self._drains[event.instance_id] = _Drain(shard, event, self._clock.monotonic())
                drain.task = asyncio.create_task(self._run_drain(drain), name=f"drain {event.instance_id}")
                self._metrics.set_draining(len(self._drains))
            else:
                drain.event = event
        elif drain is not None and (event.vm_gone or event.state != "draining"):
            self._stop(event.instance_id)
            is_cancelled = event.state in ("running", "starting")
            self._count(drain, "cancelled" if is_cancelled else "deadline")
            if is_cancelled:
                self._spawn(self._retry(functools.partial(self._find_and_uncordon, event)))

    def _stop(self, instance: str) -> None:
        drain = self._drains.pop(instance)
        if drain.task is not None:
            drain.task.cancel()
        self._metrics.set_draining(len(self._drains))

    def _count(self, drain: _Drain, result: str) -> None:
        if not drain.is_counted:
            drain.is_counted = True
            self._metrics.drained(result, self._clock.monotonic() - drain.started)
            if self._tracer is not None:
                self._tracer.record(_span(drain.event, result), started=drain.started)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _lock(self, instance: str) -> asyncio.Lock:
        return self._locks.setdefault(instance, asyncio.Lock())

    # ---- one drain

    async def _run_drain(self, drain: _Drain) -> None:
        trace_ids.current.set(trace_ids.end_of(drain.event.instance_id))
        try:
            self._count(drain, await self._drain(drain))
        except Exception:
            instance = drain.event.instance_id
            log.exception("failed to drain instance: the server's deadline ends it", extra={"instance": instance})

    async def _drain(self, drain: _Drain) -> str:
        event = drain.event
        node = await self._retry(lambda: self._nodes.find_or_list(event.instance_id, event.provider_id))
        if node is None:
            log.info("draining instance has no node", extra={"instance": event.instance_id})
        else:
            name = resources.name(node)
            # Shielded: a cordon is completed even if the drain is cancelled, and uncordoning waits for its lock.
            await self._retry(lambda: asyncio.shield(self._spawn(self._cordon(name, event.instance_id))))
            self._events.note(node, "NodeDraining", f"the instance will be deleted ({event.reason})")
            await self._evict_all(node)
            self._events.note(node, "NodeDrained", "no pods are left to evict")
            log.info("node drained", extra={"node": name, "instance": event.instance_id})
        await self._acknowledge(drain)
        return "gone" if node is None else "drained"

    async def _cordon(self, name: str, instance: str) -> None:
        """Reads the node first and changes only that version: a node that a person cordoned stays cordoned."""
        async with self._lock(instance):
            try:
                found = await self._kube.get(kinds.NODE, name)
                if resources.spec(found).get("unschedulable"):
                    return  # by us before a restart, or by a person
                metadata = {
                    "annotations": {DRAINING_ANNOTATION: instance},
                    "resourceVersion": found["metadata"]["resourceVersion"],
                }
                await self._kube.patch(kinds.NODE, name, {"spec": {"unschedulable": True}, "metadata": metadata})
            except errors.NotFoundError:
                pass  # the Node was deleted; its pods must still be evicted

    async def _evict_all(self, node: Object) -> None:
        name = resources.name(node)
        reported: set[str] = set()
        for attempt in itertools.count(1):
            listing = await self._retry(lambda: self._kube.list(kinds.POD, fields=f"spec.nodeName={name}"))
            pods = [pod for pod in listing.items if must_evict(pod)]
            if not pods:
                return
            problems = await asyncio.gather(*(self._evict(pod) for pod in pods if not resources.is_being_deleted(pod)))
            for problem in filter(None, problems):
                if problem not in reported:
                    reported.add(problem)
                    self._events.note(node, "EvictionRefused", problem, warning=True)
                    log.info("failed to evict pod, retrying", extra={"node": name, "reason": problem})
            await self._clock.sleep(POLL.delay(attempt))

    async def _evict(self, pod: Object) -> str:
        """Why it was rejected; empty if it was not."""
        metadata = pod["metadata"]
        async with self._evictions:
            try:
                await self._kube.evict(metadata["name"], namespace=metadata["namespace"], uid=resources.uid(pod))
            except (errors.NotFoundError, errors.ConflictError):
                pass  # gone, or another pod has its name now
            except errors.KubeError as problem:
                return f"{metadata['namespace']}/{metadata['name']}: {problem}"
        return ""

    async def _acknowledge(self, drain: _Drain) -> None:
        """Until the shard has answered: after a failover the next leader waits for it as well."""
        instance = drain.event.instance_id

        async def send() -> pb.AcknowledgeDrainedResponse | None:
            shard = self._shards.get(drain.shard)
            return None if shard is None else await shard.acknowledge_drained(instance)

        try:
            answer = await self._retry(send)
        except ShardRefusedError as refusal:
            reason = str(refusal)
        else:
            if answer is None or answer.accepted:
                return
            reason = answer.message
        log.info("drain acknowledgment not accepted", extra={"instance": instance, "reason": reason})

    # ---- uncordoning

    async def _find_and_uncordon(self, event: pb.InstanceEvent) -> None:
        if event.instance_id in self._drains:
            return
        node = await self._nodes.find_or_list(event.instance_id, event.provider_id)
        if node is not None:
            await self._uncordon(resources.name(node), event.instance_id)

    async def _uncordon_forgotten(self, shard: str) -> None:
        """Nodes that were cordoned before a restart, for drains that were cancelled in the meantime."""
        await self._nodes.wait_synced()
        found = self._shards.get(shard)
        if found is None:
            return
        for node in self._nodes.all():
            event = found.instances.get(resources.annotations(node).get(DRAINING_ANNOTATION, ""))
            if event is not None and event.state == "running":
                await self._retry(functools.partial(self._uncordon, resources.name(node), event.instance_id))

    async def _uncordon(self, name: str, instance: str) -> None:
        """Only a node that we cordoned, and only while its instance does not drain again."""
        async with self._lock(instance):
            if instance in self._drains:
                return
            try:
                found = await self._kube.get(kinds.NODE, name)
                if DRAINING_ANNOTATION in resources.annotations(found):
                    change = {"spec": {"unschedulable": None}, "metadata": {"annotations": {DRAINING_ANNOTATION: None}}}
                    await self._kube.patch(kinds.NODE, name, change)
                    self._events.note(found, "NodeDrainCancelled", "the drain was cancelled, the instance stays")
            except errors.NotFoundError:
                pass

    async def _retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Until Kubernetes or the shard answers, with growing delays; the server's deadline bounds it."""

        def on_failure(problem: Exception, failures: int) -> float:
            log.warning("failed to continue drain, retrying", extra={"reason": str(problem)})
            return RETRY.delay(failures)

        expected = (errors.KubeError, ShardUnreachableError)
        return await retry(work, clock=self._clock, expected=expected, on_failure=on_failure)


def _span(event: pb.InstanceEvent, result: str) -> SpanPlan:
    """Under the server's decision that the instance leaves."""
    trace_id = trace_ids.end_of(event.instance_id)
    return SpanPlan(
        name="drain",
        trace_id=trace_id,
        parent=trace_ids.span_of(trace_id, trace_ids.LEAVE),
        attributes={
            "nstance.instance.id": event.instance_id,
            "nstance.group": event.group,
            "nstance.cause": event.reason,
            "nstance.result": result,
        },
    )
