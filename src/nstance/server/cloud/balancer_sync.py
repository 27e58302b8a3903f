"""Keeps one load balancer in step with the records: its members as far as known, and the calls in flight.

It is listed when a term begins and at every inventory interval; in between, the effect of our own calls is remembered. The
trap: a call with an unknown outcome may be applied minutes later, after its opposite; only the next listing shows that.
"""

import asyncio
import functools
import logging
from dataclasses import dataclass, field
from enum import Enum

from nstance.clock import Clock
from nstance.core import load_balancing
from nstance.model.decision import ReasonCode
from nstance.model.ids import InstanceId, ProviderId
from nstance.model.instance import Instance
from nstance.objects.journal import DeposedError
from nstance.providers import errors, port
from nstance.server.cache.cache import Cache, CacheUnavailableError
from nstance.server.cloud.provider_calls import NotSentError, ProviderCalls
from nstance.server.config.active_config import ActiveConfig
from nstance.server.state.shard_parts import ShardParts
from nstance.tasks import background
from nstance.tasks.backoff import Backoff

log = logging.getLogger(__name__)

MAX_CONCURRENT_CALLS = 8  # of each kind, for each balancer
BATCH_SECONDS = 0.01
RETRY = Backoff(1.0, 60.0)


class Verb(Enum):
    REGISTER = "register"
    DEREGISTER = "deregister"


@dataclass(frozen=True, slots=True)
class _Failure:
    verb: Verb
    retry_at: float  # monotonic
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerContext:
    shard: ShardParts
    active_config: ActiveConfig
    provider: port.LoadBalancers | None
    clock: Clock
    calls: ProviderCalls
    cache: Cache | None = None
    drains_targets: bool = False  # a target that the cloud deregistered keeps its connections for a while
    records: dict[InstanceId, Instance] = field(default_factory=dict)  # as in the journal: the shard runs ahead
    ready: set[InstanceId] = field(default_factory=set)


@dataclass(slots=True)
class LoadBalancerSync:
    """One load balancer: its members as far as known, and the calls in flight."""

    target: port.LoadBalancer
    provider: port.LoadBalancers
    context: BalancerContext
    is_listed: bool = False
    _members: dict[ProviderId, bool | None] = field(default_factory=dict)  # None: the outcome of a call is unknown
    _error: str = ""
    _list_at: float = float("-inf")
    _list_failures: int = 0
    _listing: asyncio.Task[None] | None = None
    _failures: dict[ProviderId, _Failure] = field(default_factory=dict)
    _in_flight: dict[ProviderId, asyncio.Task[None]] = field(default_factory=dict)
    _called: set[ProviderId] = field(default_factory=set)  # during a listing, which may be older than the call
    _deregistered: dict[ProviderId, asyncio.Event] = field(default_factory=dict)
    _saved: frozenset[InstanceId] | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _limits: dict[Verb, asyncio.Semaphore] = field(
        default_factory=lambda: {verb: asyncio.Semaphore(MAX_CONCURRENT_CALLS) for verb in Verb}
    )

    @property
    def name(self) -> str:
        return self.target.name

    def retarget(self, target: port.LoadBalancer) -> None:
        """A list of members in another place is another list: what is known of the old one says nothing about it."""
        before, self.target = self.target, target
        if (before.file, before.webhook and before.webhook.url) != (target.file, target.webhook and target.webhook.url):
            if self._listing is not None:
                self._listing.cancel()
            self._members.clear()
            self.is_listed, self._list_at = False, float("-inf")

    @property
    def may_drain(self) -> bool:
        return self.context.drains_targets or self.target.webhook is not None

    def wake(self) -> None:
        self._wake.set()

    def is_member(self, id: ProviderId) -> bool | None:
        return self._members.get(id, False if self.is_listed else None)

    def is_used_by(self, instance: Instance) -> bool:
        return load_balancing.uses(instance, self.name, self.context.shard.state.desired_groups)

    def may_hold(self, instance: Instance) -> bool:
        if instance.provider_id is None:
            return False
        known = self.is_member(instance.provider_id)
        if known is None:
            known = instance.provider_id in self._members or self.is_used_by(instance)
        return known or instance.provider_id in self._in_flight

    async def is_draining(self, id: ProviderId) -> bool:
        """Also if that cannot be found out."""
        calls = self.context.calls
        try:
            return await calls.once(
                "load_balancer_members", calls.others, lambda: self.provider.is_draining(self.target, id)
            )
        except errors.ProviderError as error:
            log.info("failed to get the state of a target", extra={"balancer": self.name, "error": str(error)})
            return True

    def deregistered(self, id: ProviderId) -> asyncio.Event:
        """Set when a VM that may be a member is no member any more."""
        return self._deregistered.setdefault(id, asyncio.Event())

    async def run(self) -> None:
        clock = self.context.clock
        await self._load_members()
        try:
            while True:
                self._wake.clear()
                await self.context.shard.term.ready()
                if self._listing is None and clock.monotonic() >= self._list_at:
                    self._called = set(self._in_flight)
                    self._listing = asyncio.create_task(self._list())
                    self._listing.add_done_callback(self._on_listing_done)
                self._start_calls()
                self._save_members()
                self._record_recovery()
                seconds = max(0.01, min(self._next_retry() - clock.monotonic(), RETRY.most))
                await background.sleep_until_set(self._wake, seconds, clock)
                await clock.sleep(BATCH_SECONDS)
        finally:
            await background.end([*self._in_flight.values(), *([self._listing] if self._listing is not None else [])])
            self._save_members()

    def _next_retry(self) -> float:
        calls = [failure.retry_at for id, failure in self._failures.items() if id not in self._in_flight]
        listing = [self._list_at] if self._listing is None else []
        return min((*calls, *listing), default=float("inf"))

    async def _load_members(self) -> None:
        """The cached members are used until the provider has answered."""
        if self.context.cache is None:
            return
        try:
            members = await self.context.cache.members(self.name)
        except CacheUnavailableError:
            return
        for id in members or ():
            instance = self.context.records.get(id)
            if instance is not None and instance.provider_id is not None:
                self._members.setdefault(instance.provider_id, True)

    async def _list(self) -> None:
        calls = self.context.calls
        try:
            members = await calls.once(
                "load_balancer_members", calls.others, lambda: self.provider.list_targets(self.target)
            )
        except DeposedError:
            return
        except errors.ProviderError as error:
            self._on_list_failure(error)
            return
        newer = {id: self._members[id] for id in self._called if id in self._members}
        self._members = {**{id: is_whole or None for id, is_whole in members.items()}, **newer}
        self.is_listed, self._list_failures = True, 0
        self._list_at = self.context.clock.monotonic() + self.context.active_config.configuration.policy.gc_interval
        for id in [id for id in self._deregistered if self.is_member(id) is False and id not in self._in_flight]:
            self._deregistered.pop(id).set()

    def _on_list_failure(self, error: BaseException) -> None:
        self._list_failures += 1
        self._list_at = self.context.clock.monotonic() + _retry_delay(self._list_failures, error)
        self._record_failure("list members", error)

    def _on_listing_done(self, task: asyncio.Task[None]) -> None:
        self._listing = None
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("failed to list load balancer members: unexpected error", exc_info=bug)
            self._on_list_failure(bug)
        self.wake()

    def _start_calls(self) -> None:
        now = self.context.clock.monotonic()
        plan = load_balancing.plan(
            self.name,
            self.context.records.values(),
            desired_groups=self.context.shard.state.desired_groups,
            ready=self.context.ready,
            member=self.is_member,
        )
        wanted = dict.fromkeys(plan.deregister, Verb.DEREGISTER)
        if self.is_listed or self._list_failures:  # most are members already, as the first listing will show
            wanted |= dict.fromkeys(plan.register, Verb.REGISTER)
        self._failures = {
            id: failure
            for id, failure in self._failures.items()
            if id in self._in_flight or wanted.get(id) is failure.verb
        }
        by_vm = {instance.provider_id: instance.id for instance in self.context.records.values()} if wanted else {}
        for id, verb in wanted.items():
            failure = self._failures.get(id)
            if id not in self._in_flight and (failure is None or now >= failure.retry_at):
                self._called.add(id)
                task = self._in_flight[id] = asyncio.create_task(self._call(verb, id, by_vm[id]))
                task.add_done_callback(functools.partial(self._on_call_done, verb, id))

    def _on_call_done(self, verb: Verb, id: ProviderId, task: asyncio.Task[None]) -> None:
        del self._in_flight[id]
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("failed to update load balancer target: unexpected error", exc_info=bug)
            self._on_call_failure(verb, id, bug)
        if self.is_member(id) is False and id in self._deregistered:
            self._deregistered.pop(id).set()
        self.wake()

    def _is_wanted(self, verb: Verb, instance: InstanceId) -> bool:
        record = self.context.records.get(instance)
        if record is None:
            return False
        groups = self.context.shard.state.desired_groups
        return load_balancing.belongs(record, self.name, groups, self.context.ready) is (verb is Verb.REGISTER)

    async def _call(self, verb: Verb, id: ProviderId, instance: InstanceId) -> None:
        calls = self.context.calls
        if verb is Verb.REGISTER:
            act, queue = self.provider.register_target, calls.registrations
        else:
            act, queue = self.provider.deregister_target, calls.deregistrations
        async with self._limits[verb]:
            try:
                await calls.once(
                    f"load_balancer_{verb.value}",
                    queue,
                    lambda: act(self.target, id),
                    is_wanted=lambda: self._is_wanted(verb, instance),
                )
            except (DeposedError, NotSentError):
                return  # the decision changed while the call waited for its turn
            except errors.ProviderError as error:
                self._on_call_failure(verb, id, error)
            else:
                self._members[id] = verb is Verb.REGISTER
                self._failures.pop(id, None)

    def _on_call_failure(self, verb: Verb, id: ProviderId, error: BaseException) -> None:
        before = self._failures.get(id)
        attempts = before.attempts + 1 if before is not None and before.verb is verb else 1
        retry_at = self.context.clock.monotonic() + _retry_delay(attempts, error)
        self._failures[id] = _Failure(verb, retry_at, attempts)
        if not isinstance(error, errors.ThrottledError):
            not_made = isinstance(error, errors.NotFoundError | errors.PermanentError | errors.UnavailableError)
            if verb is Verb.REGISTER:
                self._members[id] = False if not_made else None
            elif isinstance(error, errors.NotFoundError):
                self._members[id] = False
        self._record_failure(f"{verb.value} {id}", error)

    def _record_failure(self, action: str, error: BaseException) -> None:
        if isinstance(error, errors.ThrottledError):
            return  # only slow
        message = f"failed to {action}: {str(error) or 'timed out'}"
        log.warning("failed to update load balancer", extra={"balancer": self.name, "error": message})
        if not self._error:
            self._record_event(ReasonCode.LOAD_BALANCER, f"load balancer {self.name} fails and is retried: {message}")
        self._error = message

    def _record_recovery(self) -> None:
        if self._error and self._list_failures == 0 and not self._failures and self.is_listed:
            self._error = ""
            self._record_event(ReasonCode.RECOVERED, f"load balancer {self.name} works again")

    def _record_event(self, code: ReasonCode, message: str) -> None:
        shard = self.context.shard
        for key, desired in shard.state.desired_groups.items():
            if self.name in desired.load_balancers:
                shard.event_log.record(key, code, message)

    def _save_members(self) -> None:
        """For the next term on this server."""
        if self.context.cache is None or not self.is_listed:
            return
        members = frozenset(
            instance.id
            for instance in self.context.records.values()
            if instance.provider_id is not None and self._members.get(instance.provider_id)
        )
        if members != self._saved:
            self._saved = members
            self.context.cache.put_members(self.name, members)


def _retry_delay(failures: int, error: BaseException) -> float:
    requested = error.delay if isinstance(error, errors.ThrottledError) else 0.0
    return max(requested, RETRY.delay(failures))
