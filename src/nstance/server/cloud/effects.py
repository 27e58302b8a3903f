"""Carrying out what was decided: calls to the provider, whose outcomes return to the shard as events.

Every call ends in exactly one event, also when it fails by a bug: an outcome that nobody reports would never be asked for
again in this term. How a call is made is told in `calls`. Creates, deletes and looks have budgets of their
own, so that none starves another. Many looks at once become one listing. A create that waited until nobody wanted it any
more is not sent, and its record ends without one.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from nstance import points
from nstance.clock import Clock
from nstance.config.model.shard import ShardConfig
from nstance.model import decision as dec
from nstance.model import events as ev
from nstance.model.ids import InstanceId
from nstance.model.instance import Instance
from nstance.objects.journal import DeposedError
from nstance.providers import errors
from nstance.providers.port import Console, CreateRequest, Instances, Status, Vm
from nstance.server.cloud.provider_calls import NotSentError, ProviderCalls
from nstance.server.cloud.resizable_semaphore import ResizableSemaphore
from nstance.server.workload.rendering import NotFetchedError, RenderError, request_hash
from nstance.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

LIST_INSTEAD_FROM = 16  # so many looks at once are answered by one listing
LOOKS_AT_ONCE = 16
DELETES_AT_ONCE = 32
CONSOLE_SECONDS = 5.0
UNEXPECTED = "an unexpected error, which the server's log shows"

MEANING = {
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


def checked(vm: Vm, asked: float) -> ev.VmChecked:
    return ev.VmChecked(vm.id, MEANING[vm.status], vm.provider_id, vm.ip4, vm.ip6, vm.hostname, asked)


class Effects:
    def __init__(
        self,
        *,
        provider: Instances,
        console: Console | None,
        calls: ProviderCalls,
        clock: Clock,
        metrics: Metrics,
        settings: Callable[[], ShardConfig],
        request: Callable[[Instance], CreateRequest],
        wanted: Callable[[InstanceId], bool],
        post: Callable[[ev.Event], None],
        left: Callable[[Instance], Awaitable[None]],
        said: Callable[[Instance, str], None],
    ) -> None:
        """`settings` are asked each time, so that new timings apply at once. `wanted`: the instance is not about to go;
        `left` waits until nothing sends requests to the instance any more; `said` is told the console output of one that
        failed."""
        self._provider = provider
        self._console = console
        self._calls = calls
        self._clock = clock
        self._metrics = metrics
        self._request = request
        self._wanted = wanted
        self._post = post
        self._left = left
        self._said = said
        self._creates = ResizableSemaphore(lambda: settings().create_concurrency)
        self._deletes = asyncio.Semaphore(DELETES_AT_ONCE)
        self._looks = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._to_check: list[Instance] = []
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order of their beginning

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

    def configured(self) -> None:
        """The settings are new."""
        self._creates.admit()

    async def close(self) -> None:
        """Drop what is under way. Intents and tombstones are in the journal: whoever leads next goes on."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        self._calls.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def finish(self, seconds: float) -> None:
        """Let what is under way come to its end for a moment."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=seconds)

    def _spawn(self, work: Coroutine[Any, Any, None], failed: ev.Event | None = None) -> None:
        """`failed` is posted if the work ends with an error that it did not expect."""
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(functools.partial(self._ended, failed))

    def _ended(self, failed: ev.Event | None, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not isinstance(problem, DeposedError):
            log.error("an effect failed in a way nobody expected", exc_info=problem)
            if failed is not None:
                self._post(failed)

    async def _create(self, instance: Instance, posted: float, *, may_exist: bool) -> None:
        def wanted() -> bool:
            return self._wanted(instance.id)

        async with self._creates:
            place = await self._calls.creates.turn(wanted=wanted)
            if not wanted():
                self._post(ev.VmCreateFailed(instance.id, ev.Failure.UNSENT, "it is not wanted any more"))
                return
            try:
                request = self._request(instance)
            except RenderError as problem:
                failure = ev.Failure.UNAVAILABLE if isinstance(problem, NotFetchedError) else ev.Failure.REFUSED
                self._post(ev.VmCreateFailed(instance.id, failure, str(problem)))
                return
            if instance.request_hash and request_hash(request) != instance.request_hash:
                await self._find_stale(instance)
                return
            request = replace(request, may_exist=may_exist)
            await points.reach(points.Point.BEFORE_CREATE)
            began = self._clock.monotonic()
            if instance.replaces is not None or instance.predecessor is not None:
                self._metrics.replaced(instance.key, began - posted)
            event: ev.Event
            try:
                vm = await self._calls.patiently(
                    "create", self._calls.creates, lambda: self._provider.create(request), place=place, wanted=wanted
                )
                event = ev.VmCreated(
                    vm.id, vm.provider_id, vm.ip4, vm.ip6, vm.hostname, seen=self._provider.traits.is_consistent
                )
                self._metrics.created(instance.key, self._clock.monotonic() - began)
            except NotSentError as problem:
                # Throttled means not made; but only of one that was never asked for is that certain.
                failure = ev.Failure.UNAVAILABLE if problem.tried else ev.Failure.UNSENT
                event = ev.VmCreateFailed(instance.id, failure, str(problem))
            except errors.NoCapacityError as problem:
                event = ev.VmCreateFailed(instance.id, ev.Failure.NO_CAPACITY, str(problem))
            except errors.PermanentError as problem:
                event = ev.VmCreateFailed(instance.id, ev.Failure.REFUSED, str(problem))
            except errors.UnavailableError as problem:
                event = ev.VmCreateFailed(instance.id, ev.Failure.UNAVAILABLE, str(problem))
            except errors.ProviderError as problem:
                event = ev.VmCreateFailed(instance.id, ev.Failure.UNKNOWN, str(problem))
            await points.reach(points.Point.AFTER_CREATE)
            self._post(event)

    async def _find_stale(self, instance: Instance) -> None:
        """The configuration changed since the intent, so the call cannot be repeated as it was: it is only looked up."""
        try:
            vm = await self._look(instance)
            self._post(ev.VmCreated(vm.id, vm.provider_id, vm.ip4, vm.ip6, vm.hostname, seen=True))
        except errors.NotFoundError:
            self._post(ev.VmCreateFailed(instance.id, ev.Failure.STALE, "its configuration changed"))
        except errors.ProviderError as problem:
            self._post(ev.VmCreateFailed(instance.id, ev.Failure.UNAVAILABLE, str(problem)))

    async def _delete(self, instance: Instance, effect: dec.DeleteVm | dec.DeleteDuplicateVm) -> None:
        if isinstance(effect, dec.DeleteVm):
            await self._left(instance)
            if effect.keep_console and self._console is not None:
                await self._read_console(self._console, instance)
        async with self._deletes:
            await points.reach(points.Point.BEFORE_DELETE)
            event: ev.Event | None
            try:
                status = await self._calls.patiently(
                    "delete", self._calls.deletes, lambda: self._provider.delete(instance.id, effect.provider_id)
                )
                if isinstance(effect, dec.DeleteDuplicateVm):
                    event = ev.DuplicateVmDeleted(instance.id, effect.provider_id)
                else:
                    event = ev.VmDeleted(instance.id, final=status is Status.DELETED)
            except errors.ProviderError as problem:
                log.info("a delete failed", extra={"instance": instance.id, "error": str(problem)})
                # A double is asked for again in its time; nobody waits for it.
                event = (
                    None if isinstance(effect, dec.DeleteDuplicateVm) else ev.VmDeleteFailed(instance.id, str(problem))
                )
            await points.reach(points.Point.AFTER_DELETE)
            if event is not None:
                self._post(event)

    async def _read_console(self, console: Console, instance: Instance) -> None:
        """It may say why the VM failed. A deletion does not wait long for it, and never fails for it."""
        try:
            async with asyncio.timeout(CONSOLE_SECONDS):
                output = await self._calls.patiently(
                    "console", self._calls.looks, lambda: console.console_output(instance.id, instance.provider_id)
                )
        except (errors.ProviderError, TimeoutError) as problem:
            log.info("no console output", extra={"instance": instance.id, "error": str(problem) or "timed out"})
            return
        if output.strip():
            self._said(instance, output)

    async def _check_all(self) -> None:
        """What was asked for since the last look. A listing says who is there; who is not is asked for singly."""
        await asyncio.sleep(0)
        wanted, self._to_check = self._to_check, []
        asked = self._clock.steady()
        shown = await self._shown() if len(wanted) >= LIST_INSTEAD_FROM else {}
        for instance in wanted:
            vm = shown.get(instance.id)
            if vm is not None and vm.provider_id == (instance.provider_id or vm.provider_id):
                self._post(checked(vm, asked))
            else:
                self._spawn(self._check(instance), ev.VmChecked(instance.id, ev.VmState.UNKNOWN))

    async def _shown(self) -> Mapping[InstanceId, Vm]:
        """What a listing shows; nothing if it fails, in whatever way."""
        try:
            vms = await self._calls.patiently("list", self._calls.looks, self._provider.list)
        except DeposedError:
            raise
        except Exception as problem:
            unexpected = None if isinstance(problem, errors.ProviderError) else problem
            log.warning(
                "failed to list VMs, they are asked for singly", extra={"error": str(problem)}, exc_info=unexpected
            )
            return {}
        return {vm.id: vm for vm in vms}

    async def _look(self, instance: Instance) -> Vm:
        return await self._calls.patiently(
            "get", self._calls.looks, lambda: self._provider.get(instance.id, instance.provider_id)
        )

    async def _check(self, instance: Instance) -> None:
        async with self._looks:
            asked = self._clock.steady()
            try:
                vm = await self._look(instance)
                self._post(checked(vm, asked))
            except errors.NotFoundError:
                self._post(ev.VmChecked(instance.id, ev.VmState.ABSENT, asked=asked))
            except errors.ProviderError as problem:
                log.info("a VM could not be looked at", extra={"instance": instance.id, "error": str(problem)})
                self._post(ev.VmChecked(instance.id, ev.VmState.UNKNOWN))
