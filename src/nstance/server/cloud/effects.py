"""Carries out effects: calls to the provider, whose outcomes return to the shard as events.

Every effect ends in exactly one event, also when it fails by a bug: an outcome that is not reported would never be asked
for again in this term. Creates, deletes and lookups have separate limits, so that none starves another. Many lookups at
once become one listing. A create that is not wanted any more when its turn comes is not sent.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nstance import points
from nstance.clock import Clock
from nstance.config.model.shard import ShardConfig
from nstance.model import decision as dec
from nstance.model import events as ev
from nstance.model.ids import InstanceId
from nstance.model.instance import Instance
from nstance.model.offer import CapacityScope
from nstance.objects.journal import DeposedError
from nstance.providers import errors
from nstance.providers.port import Console, CreateRequest, Instances, Status, Vm
from nstance.server.cloud.provider_calls import NotSentError, ProviderCalls
from nstance.server.cloud.resizable_semaphore import ResizableSemaphore
from nstance.server.state.instance_traces import InstanceTraces
from nstance.server.workload.rendering import NotFetchedError, RenderError, request_hash
from nstance.tasks import background
from nstance.telemetry import trace_ids
from nstance.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

MIN_LOOKUPS_FOR_LISTING = 16
MAX_CONCURRENT_LOOKUPS = 16
MAX_CONCURRENT_DELETES = 32
CONSOLE_TIMEOUT_SECONDS = 5.0
UNEXPECTED = "unexpected error, see the server's log"

VM_STATES = {
    Status.PENDING: ev.VmState.RUNNING,
    Status.RUNNING: ev.VmState.RUNNING,
    Status.REPAIRING: ev.VmState.UNKNOWN,
    Status.UNKNOWN: ev.VmState.UNKNOWN,
    Status.STOPPING: ev.VmState.DOWN,
    Status.STOPPED: ev.VmState.DOWN,
    Status.SUSPENDING: ev.VmState.DOWN,
    Status.SUSPENDED: ev.VmState.DOWN,
    Status.DELETING: ev.VmState.DOWN,
    Status.DELETED: ev.VmState.DELETED,
}

FAILURES: tuple[tuple[type[errors.ProviderError], ev.Failure], ...] = (
    (errors.NoCapacityError, ev.Failure.NO_CAPACITY),
    (errors.PermanentError, ev.Failure.REFUSED),
    (errors.UnavailableError, ev.Failure.UNAVAILABLE),
    (errors.ProviderError, ev.Failure.UNKNOWN),
)


def _vm_checked(vm: Vm, asked: float) -> ev.VmChecked:
    return ev.VmChecked(vm.id, VM_STATES[vm.status], vm.provider_id, vm.ip4, vm.ip6, vm.hostname, asked)


def _vm_created(vm: Vm, *, seen: bool) -> ev.VmCreated:
    return ev.VmCreated(vm.id, vm.provider_id, vm.ip4, vm.ip6, vm.hostname, seen=seen)


def _create_failed(instance: Instance, error: errors.ProviderError) -> ev.VmCreateFailed:
    failure = next(failure for kind, failure in FAILURES if isinstance(error, kind))
    scope: CapacityScope | None = None
    if isinstance(error, errors.NoCapacityError):
        scope = error.scope
    elif failure is not ev.Failure.REFUSED and not isinstance(error, errors.OutOfReachError):
        scope = CapacityScope.OFFER  # a server error
    return ev.VmCreateFailed(instance.id, failure, str(error), scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectContext:
    """What effects need from the leader."""

    provider: Instances
    console: Console | None
    calls: ProviderCalls
    clock: Clock
    metrics: Metrics
    settings: Callable[[], ShardConfig]  # read each time, so that new settings apply at once
    make_request: Callable[[Instance], CreateRequest]
    is_wanted: Callable[[InstanceId], bool]  # the instance is not about to be deleted
    is_exhausted: Callable[[Instance], bool]  # its offer is known to have no capacity
    post: Callable[[ev.Event], None]
    wait_deregistered: Callable[[Instance], Awaitable[None]]  # from its load balancers
    on_console_output: Callable[[Instance, str], None]  # of a VM that failed
    traces: InstanceTraces | None = None


class Effects:
    def __init__(self, context: EffectContext) -> None:
        self._provider = context.provider
        self._console = context.console
        self._calls = context.calls
        self._clock = context.clock
        self._post = context.post
        self._context = context
        self._creates = ResizableSemaphore(lambda: context.settings().create_concurrency)
        self._deletes = asyncio.Semaphore(MAX_CONCURRENT_DELETES)
        self._lookups = asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)
        self._to_check: list[Instance] = []
        self._tasks: dict[asyncio.Task[None], None] = {}  # oldest first

    def start(self, effect: dec.Effect, instance: Instance, posted: float) -> None:
        match effect:
            case dec.CreateVm():
                failed: ev.Event = ev.VmCreateFailed(instance.id, ev.Failure.UNKNOWN, UNEXPECTED)
                self._spawn(self._create(instance, posted, may_exist=effect.may_exist), failed)
            case dec.DeleteVm():
                self._spawn(self._delete(instance, effect), ev.VmDeleteFailed(instance.id, UNEXPECTED))
            case dec.DeleteDuplicateVm():
                self._spawn(self._delete(instance, effect))
            case dec.CheckVm():
                self._to_check.append(instance)
                if len(self._to_check) == 1:
                    self._spawn(self._check_all())

    def on_configured(self) -> None:
        self._creates.admit()

    async def close(self) -> None:
        """Cancels running effects. Intents and tombstones are in the journal, where the next leader finds them."""
        self._calls.close()
        await background.end(self._tasks)

    async def finish(self, seconds: float) -> None:
        """Waits a moment for running effects to end."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=seconds)

    def _spawn(self, work: Coroutine[Any, Any, None], failed: ev.Event | None = None) -> None:
        """`failed` is posted if the work ends with an unexpected error."""
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(functools.partial(self._on_done, failed))

    def _on_done(self, failed: ev.Event | None, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, DeposedError):
            log.error("failed to carry out an effect: unexpected error", exc_info=error)
            if failed is not None:
                self._post(failed)

    async def _create(self, instance: Instance, posted: float, *, may_exist: bool) -> None:
        context = self._context
        trace_ids.current.set(trace_ids.birth_of(instance))

        def is_wanted() -> bool:
            # A call that may find the VM of an earlier one is sent in any case.
            return context.is_wanted(instance.id) and (may_exist or not context.is_exhausted(instance))

        async with self._creates:
            place = await self._calls.creates.wait_turn(is_wanted=is_wanted)
            if not is_wanted():
                self._post(self._not_sent(instance))
                return
            try:
                request = context.make_request(instance)
            except RenderError as error:
                failure = ev.Failure.UNAVAILABLE if isinstance(error, NotFetchedError) else ev.Failure.REFUSED
                self._post(ev.VmCreateFailed(instance.id, failure, str(error)))
                return
            if instance.request_hash and request_hash(request) != instance.request_hash:
                await self._find_stale(instance)
                return
            request = replace(request, may_exist=may_exist)
            await points.reach(points.Point.BEFORE_CREATE)
            started = self._clock.monotonic()
            if instance.replaces is not None or instance.predecessor is not None:
                context.metrics.replaced(instance.key, started - posted)
            event: ev.Event
            try:
                vm = await self._calls.until_accepted(
                    "create",
                    self._calls.creates,
                    lambda: self._provider.create(request),
                    place=place,
                    is_wanted=is_wanted,
                )
                event = _vm_created(vm, seen=self._provider.traits.is_consistent)
                context.metrics.created(instance.key, self._clock.monotonic() - started)
            except NotSentError as error:
                # A throttled call made no VM, but only without any call is that certain.
                tried = ev.VmCreateFailed(instance.id, ev.Failure.UNAVAILABLE, str(error))
                event = tried if error.tried else self._not_sent(instance)
            except errors.ProviderError as error:
                event = _create_failed(instance, error)
            if context.traces is not None:
                context.traces.created(instance, started, getattr(event, "message", ""))
            await points.reach(points.Point.AFTER_CREATE)
            self._post(event)

    def _not_sent(self, instance: Instance) -> ev.VmCreateFailed:
        if self._context.is_wanted(instance.id):
            message = "refused to another instance while this one waited for its turn"
            return ev.VmCreateFailed(instance.id, ev.Failure.SKIPPED, message)
        return ev.VmCreateFailed(instance.id, ev.Failure.UNSENT, "it is not wanted any more")

    async def _find_stale(self, instance: Instance) -> None:
        """The configuration has changed since the intent, so the request cannot be repeated; the VM is only looked up."""
        try:
            vm = await self._get(instance)
            self._post(_vm_created(vm, seen=self._provider.traits.is_consistent))
        except errors.NotFoundError:
            self._post(ev.VmCreateFailed(instance.id, ev.Failure.STALE, "its configuration changed"))
        except errors.ProviderError as error:
            self._post(ev.VmCreateFailed(instance.id, ev.Failure.UNAVAILABLE, str(error)))

    async def _delete(self, instance: Instance, effect: dec.DeleteVm | dec.DeleteDuplicateVm) -> None:
        trace_ids.current.set(trace_ids.end_of(instance.id))
        if isinstance(effect, dec.DeleteVm):
            await self._context.wait_deregistered(instance)
            if effect.keep_console and self._console is not None:
                await self._read_console(self._console, instance)
        async with self._deletes:
            await points.reach(points.Point.BEFORE_DELETE)
            event: ev.Event | None = None
            started, problem = self._clock.monotonic(), ""
            try:
                status = await self._calls.until_accepted(
                    "delete", self._calls.deletes, lambda: self._provider.delete(instance.id, effect.provider_id)
                )
                if isinstance(effect, dec.DeleteDuplicateVm):
                    event = ev.DuplicateVmDeleted(instance.id, effect.provider_id)
                else:
                    event = ev.VmDeleted(instance.id, final=status is Status.DELETED)
            except errors.ProviderError as error:
                problem = str(error)
                log.info("failed to delete VM", extra={"instance": instance.id, "error": problem})
                if isinstance(effect, dec.DeleteVm):  # nothing waits for a duplicate; it is deleted again later
                    event = ev.VmDeleteFailed(instance.id, problem)
            if self._context.traces is not None:
                self._context.traces.deleted(instance, started, problem)
            await points.reach(points.Point.AFTER_DELETE)
            if event is not None:
                self._post(event)

    async def _read_console(self, console: Console, instance: Instance) -> None:
        """It may say why the VM failed. A deletion neither waits long for it nor fails without it."""
        try:
            async with asyncio.timeout(CONSOLE_TIMEOUT_SECONDS):
                output = await self._calls.until_accepted(
                    "console", self._calls.lookups, lambda: console.console_output(instance.id, instance.provider_id)
                )
        except (errors.ProviderError, TimeoutError) as error:
            extra = {"instance": instance.id, "error": str(error) or "timed out"}
            log.info("failed to read console output", extra=extra)
            return
        if output.strip():
            self._context.on_console_output(instance, output)

    async def _check_all(self) -> None:
        """Checks all VMs that were asked for in this step. VMs that a listing does not show are looked up singly."""
        await asyncio.sleep(0)
        instances, self._to_check = self._to_check, []
        asked = self._clock.steady()
        listed = await self._list() if len(instances) >= MIN_LOOKUPS_FOR_LISTING else {}
        for instance in instances:
            vm = listed.get(instance.id)
            if vm is not None and vm.provider_id == (instance.provider_id or vm.provider_id):
                self._post(_vm_checked(vm, asked))
            else:
                self._spawn(self._check(instance), ev.VmChecked(instance.id, ev.VmState.UNKNOWN))

    async def _list(self) -> Mapping[InstanceId, Vm]:
        """Empty if the listing fails in any way: then each VM is looked up."""
        try:
            vms = await self._calls.until_accepted("list", self._calls.lookups, self._provider.list)
        except DeposedError:
            raise
        except Exception as error:
            bug = None if isinstance(error, errors.ProviderError) else error
            log.warning("failed to list VMs: looking them up singly", extra={"error": str(error)}, exc_info=bug)
            return {}
        return {vm.id: vm for vm in vms}

    async def _get(self, instance: Instance) -> Vm:
        return await self._calls.until_accepted(
            "get", self._calls.lookups, lambda: self._provider.get(instance.id, instance.provider_id)
        )

    async def _check(self, instance: Instance) -> None:
        async with self._lookups:
            asked = self._clock.steady()
            try:
                vm = await self._get(instance)
                self._post(_vm_checked(vm, asked))
            except errors.NotFoundError:
                self._post(ev.VmChecked(instance.id, ev.VmState.ABSENT, asked=asked))
            except errors.ProviderError as error:
                log.info("failed to get instance status", extra={"instance": instance.id, "error": str(error)})
                self._post(ev.VmChecked(instance.id, ev.VmState.UNKNOWN))
