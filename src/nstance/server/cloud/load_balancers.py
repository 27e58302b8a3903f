"""Load balancers: what they hold is brought in step with what the records say, each one by itself.

`core.load_balancing` decides; here are the calls. A balancer is listed when a term begins and at every garbage collection;
in between, what our own calls did is remembered. Deregistering never waits behind registering, and a deletion waits for
it only a few seconds. The trap: a call whose outcome is unknown may be applied minutes later, after its opposite; only
the next listing shows that.
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
from nstance.model.instance import Instance, Put, Remove
from nstance.objects.journal import DeposedError
from nstance.providers import errors, port
from nstance.server.cache.cache import Cache, CacheUnavailableError
from nstance.server.cloud.provider_calls import NotSentError, ProviderCalls
from nstance.server.config.active_config import ActiveConfig
from nstance.server.state.commits import Committed
from nstance.server.state.shard_parts import ShardParts
from nstance.tasks.backoff import Backoff
from nstance.tasks.keyed_tasks import KeyedTasks

log = logging.getLogger(__name__)

LEAVE_SECONDS = 5.0  # so long a deletion waits for a balancer that does not answer
CALLS_AT_ONCE = 8  # of each kind, for each balancer
GATHER_SECONDS = 0.01  # what changes within this time is looked at once
RETRY = Backoff(1.0, 60.0)


class Verb(Enum):
    REGISTER = "register"
    DEREGISTER = "deregister"


@dataclass(frozen=True, slots=True)
class _Failure:
    verb: Verb
    again: float  # monotonic
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    shard: ShardParts
    active_config: ActiveConfig
    provider: port.LoadBalancers | None
    clock: Clock
    calls: ProviderCalls
    cache: Cache | None = None
    records: dict[InstanceId, Instance] = field(
        default_factory=dict
    )  # as they are in the journal: the shard runs ahead


class LoadBalancers:
    """All load balancers of a shard during one term."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._tools.records.update(tools.shard.state.instances)
        self._ready: set[InstanceId] = set()
        self._balancers: dict[str, LoadBalancerSync] = {}
        self._workers = KeyedTasks[str](lambda name: self._balancers[name].run())

    def configure(self, names: list[str]) -> None:
        """From now on these are looked after. One that is named no longer keeps its members: nobody could call it."""
        provider = self._tools.provider
        if provider is None:
            return
        self._balancers = {
            name: self._balancers.get(name) or LoadBalancerSync(name, provider, self._tools, self._ready)
            for name in names
        }
        self._workers.want(names)
        for balancer in self._balancers.values():
            balancer.look()

    async def run(self) -> None:
        await self._workers.run()

    def set_ready(self, id: InstanceId, ready: bool) -> None:
        """One that is ready comes in. One that is not any more stays where it is, but is not taken in."""
        if not ready:
            self._ready.discard(id)
        elif id not in self._ready:
            self._ready.add(id)
            instance = self._tools.records.get(id)
            if instance is not None:
                self._look(instance)

    def observe(self, committed: Committed) -> None:
        for change in committed.changes:
            match change:
                case Put(instance):
                    self._tools.records[instance.id] = instance
                    before = committed.before.get(instance.id)
                    if before is None or (before.state, before.provider_id) != (instance.state, instance.provider_id):
                        self._look(instance)
                case Remove(id):
                    self._tools.records.pop(id, None)
                    self._ready.discard(id)

    async def left(self, instance: Instance) -> None:
        """Until no balancer holds it, or until that takes too long."""
        holding = [balancer for balancer in self._balancers.values() if balancer.may_hold(instance)]
        if not holding:
            return
        assert instance.provider_id is not None
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                for balancer in holding:
                    balancer.look()
                for out in [balancer.out(instance.provider_id) for balancer in holding]:
                    await out.wait()
        except TimeoutError:
            names = ", ".join(balancer.name for balancer in holding if balancer.may_hold(instance))
            log.warning(
                "deleted although its load balancer does not let it go",
                extra={"instance": instance.id, "balancers": names},
            )

    def _look(self, instance: Instance) -> None:
        for balancer in self._balancers.values():
            if load_balancing.uses(
                instance, balancer.name, self._tools.shard.state.desired_groups
            ) or balancer.may_hold(instance):
                balancer.look()


@dataclass(slots=True)
class LoadBalancerSync:
    """One of them: what it holds as far as we know, and the calls under way."""

    name: str
    provider: port.LoadBalancers
    tools: Tools
    ready: set[InstanceId]
    known: dict[ProviderId, bool | None] = field(default_factory=dict)  # None: a call's outcome is unknown
    listed: bool = False
    trouble: str = ""
    _list_at: float = float("-inf")
    _list_failures: int = 0
    _listing: asyncio.Task[None] | None = None
    _failures: dict[ProviderId, _Failure] = field(default_factory=dict)
    _flying: dict[ProviderId, asyncio.Task[None]] = field(default_factory=dict)
    _touched: set[ProviderId] = field(default_factory=set)  # by calls during a listing, which may be older than they
    _out: dict[ProviderId, asyncio.Event] = field(default_factory=dict)
    _kept: frozenset[InstanceId] | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _budgets: dict[Verb, asyncio.Semaphore] = field(
        default_factory=lambda: {verb: asyncio.Semaphore(CALLS_AT_ONCE) for verb in Verb}
    )

    def look(self) -> None:
        self._wake.set()

    def member(self, id: ProviderId) -> bool | None:
        return self.known.get(id, False if self.listed else None)

    def may_hold(self, instance: Instance) -> bool:
        if instance.provider_id is None:
            return False
        known = self.member(instance.provider_id)
        if known is None:
            known = instance.provider_id in self.known or load_balancing.uses(
                instance, self.name, self.tools.shard.state.desired_groups
            )
        return known or instance.provider_id in self._flying

    def out(self, id: ProviderId) -> asyncio.Event:
        """Set when a VM that may be a member is one no longer."""
        return self._out.setdefault(id, asyncio.Event())

    async def run(self) -> None:
        clock = self.tools.clock
        await self._remember()
        try:
            while True:
                self._wake.clear()
                await self.tools.shard.term.ready()
                if self._listing is None and clock.monotonic() >= self._list_at:
                    self._touched = set(self._flying)
                    self._listing = asyncio.create_task(self._list())
                    self._listing.add_done_callback(self._listing_done)
                self._start_calls()
                self._keep()
                self._judge()
                await self._rest(self._next_look() - clock.monotonic())
                await clock.sleep(GATHER_SECONDS)
        finally:
            tasks = [*self._flying.values(), *([self._listing] if self._listing is not None else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._keep()

    def _next_look(self) -> float:
        calls = [failure.again for id, failure in self._failures.items() if id not in self._flying]
        listing = [self._list_at] if self._listing is None else []
        return min((*calls, *listing), default=float("inf"))

    async def _rest(self, seconds: float) -> None:
        """For so long, or until there is something to do."""
        sleeping = asyncio.ensure_future(self.tools.clock.sleep(max(0.01, min(seconds, RETRY.most))))
        waking = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait([sleeping, waking], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()

    async def _remember(self) -> None:
        """What the cache knows serves until the provider has answered."""
        if self.tools.cache is None:
            return
        try:
            members = await self.tools.cache.members(self.name)
        except CacheUnavailableError:
            return
        for id in members or ():
            instance = self.tools.records.get(id)
            if instance is not None and instance.provider_id is not None:
                self.known.setdefault(instance.provider_id, True)

    async def _list(self) -> None:
        clock = self.tools.clock
        calls = self.tools.calls
        try:
            members = await calls.once(
                "load_balancer_members", calls.questions, lambda: self.provider.list_targets(self.name)
            )
        except DeposedError:
            return
        except errors.ProviderError as problem:
            self._listing_failed(problem)
            return
        newer = {id: self.known[id] for id in self._touched if id in self.known}
        self.known = {**dict.fromkeys(members, True), **newer}
        self.listed, self._list_failures = True, 0
        self._list_at = clock.monotonic() + self.tools.active_config.configuration.policy.gc_interval
        for id in [id for id in self._out if self.member(id) is False and id not in self._flying]:
            self._out.pop(id).set()

    def _listing_failed(self, problem: BaseException) -> None:
        self._list_failures += 1
        self._list_at = self.tools.clock.monotonic() + _backoff(self._list_failures, problem)
        if isinstance(problem, errors.ThrottledError):
            return  # nothing is wrong; it is only slow
        self._complain(f"its members cannot be listed: {str(problem) or 'timed out'}")

    def _listing_done(self, task: asyncio.Task[None]) -> None:
        self._listing = None
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("listing a load balancer failed in a way nobody expected", exc_info=bug)
            self._listing_failed(bug)
        self.look()

    def _start_calls(self) -> None:
        now = self.tools.clock.monotonic()
        shard = self.tools.shard
        plan = load_balancing.plan(
            self.name,
            self.tools.records.values(),
            desired_groups=shard.state.desired_groups,
            ready=self.ready,
            member=self.member,
        )
        wanted = dict.fromkeys(plan.deregister, Verb.DEREGISTER)
        if self.listed or self._list_failures:  # most of them are members already, which the first listing will show
            wanted |= dict.fromkeys(plan.register, Verb.REGISTER)
        self._failures = {
            id: failure
            for id, failure in self._failures.items()
            if id in self._flying or wanted.get(id) is failure.verb
        }
        by_vm = {instance.provider_id: instance.id for instance in self.tools.records.values()} if wanted else {}
        for id, verb in wanted.items():
            failure = self._failures.get(id)
            if id not in self._flying and (failure is None or now >= failure.again):
                self._touched.add(id)
                task = self._flying[id] = asyncio.create_task(self._call(verb, id, by_vm[id]))
                task.add_done_callback(functools.partial(self._landed, verb, id))

    def _landed(self, verb: Verb, id: ProviderId, task: asyncio.Task[None]) -> None:
        del self._flying[id]
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("a load balancer's call failed in a way nobody expected", exc_info=bug)
            self._failed(verb, id, bug)
        if self.member(id) is False and id in self._out:
            self._out.pop(id).set()
        self.look()

    def _is_wanted(self, verb: Verb, instance: InstanceId) -> bool:
        shard = self.tools.shard
        record = self.tools.records.get(instance)
        if record is None:
            return False
        return load_balancing.belongs(record, self.name, shard.state.desired_groups, self.ready) is (
            verb is Verb.REGISTER
        )

    async def _call(self, verb: Verb, id: ProviderId, instance: InstanceId) -> None:
        calls = self.tools.calls
        if verb is Verb.REGISTER:
            act, lane = self.provider.register_target, calls.joins
        else:
            act, lane = self.provider.deregister_target, calls.leaves
        async with self._budgets[verb]:
            try:
                await calls.once(
                    f"load_balancer_{verb.value}",
                    lane,
                    lambda: act(self.name, id),
                    wanted=lambda: self._is_wanted(verb, instance),
                )
            except (DeposedError, NotSentError):
                return  # decided otherwise while it waited for its turn
            except errors.ProviderError as problem:
                self._failed(verb, id, problem)
            else:
                self.known[id] = verb is Verb.REGISTER
                self._failures.pop(id, None)

    def _failed(self, verb: Verb, id: ProviderId, problem: BaseException) -> None:
        before = self._failures.get(id)
        attempts = before.attempts + 1 if before is not None and before.verb is verb else 1
        wait = _backoff(attempts, problem)
        now = self.tools.clock.monotonic()
        self._failures[id] = _Failure(verb, now + wait, attempts)
        if isinstance(problem, errors.ThrottledError):
            return  # nothing is wrong; it is only slow
        if verb is Verb.REGISTER:
            self.known[id] = (
                False
                if isinstance(problem, errors.NotFoundError | errors.PermanentError | errors.UnavailableError)
                else None
            )
        elif isinstance(problem, errors.NotFoundError):
            self.known[id] = False
        self._complain(f"{id} could not be {verb.value}ed: {str(problem) or 'timed out'}")

    def _complain(self, message: str) -> None:
        log.warning("a load balancer makes trouble", extra={"balancer": self.name, "error": message})
        if not self.trouble:
            self._tell(
                ReasonCode.LOAD_BALANCER, f"the load balancer {self.name} makes trouble, it is tried again: {message}"
            )
        self.trouble = message

    def _judge(self) -> None:
        if self.trouble and self._list_failures == 0 and not self._failures and self.listed:
            self.trouble = ""
            self._tell(ReasonCode.RECOVERED, f"the load balancer {self.name} works again")

    def _tell(self, code: ReasonCode, message: str) -> None:
        shard = self.tools.shard
        for key, desired in shard.state.desired_groups.items():
            if self.name in desired.load_balancers:
                shard.event_log.record(key, code, message)

    def _keep(self) -> None:
        """For the next term on this server."""
        if self.tools.cache is None or not self.listed:
            return
        members = frozenset(
            instance.id
            for instance in self.tools.records.values()
            if instance.provider_id is not None and self.known.get(instance.provider_id)
        )
        if members != self._kept:
            self._kept = members
            self.tools.cache.put_members(self.name, members)


def _backoff(failures: int, problem: BaseException) -> float:
    asked = problem.delay if isinstance(problem, errors.ThrottledError) else 0.0
    return max(asked, RETRY.delay(failures))
