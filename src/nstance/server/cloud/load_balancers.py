"""Keeps load balancers in step with the records.

`core.load_balancing` decides; `balancer_sync` makes the calls to each of them. Deregistrations never wait behind
registrations, and a deletion waits only a few seconds for them.
"""

import asyncio
import logging
from collections.abc import Iterable

from nstance.model.ids import InstanceId
from nstance.model.instance import Instance, Put, Remove
from nstance.providers import port
from nstance.server.cloud.balancer_sync import BalancerContext, LoadBalancerSync
from nstance.server.state.commits import Committed
from nstance.tasks.keyed_tasks import KeyedTasks

log = logging.getLogger(__name__)


class LoadBalancers:
    """All load balancers of a shard during one term."""

    def __init__(self, context: BalancerContext) -> None:
        self._context = context
        self._records, self._ready = context.records, context.ready
        self._records.update(context.shard.state.instances)
        self._balancers: dict[str, LoadBalancerSync] = {}
        self._workers = KeyedTasks[str](lambda name: self._balancers[name].run())

    def configure(self, targets: Iterable[port.LoadBalancer]) -> None:
        """A balancer that is no longer named keeps its members, because it cannot be called any more."""
        provider = self._context.provider
        if provider is None:
            return
        kept, self._balancers = self._balancers, {}
        for target in targets:
            self._balancers[target.name] = sync = kept.get(target.name) or LoadBalancerSync(
                target, provider, self._context
            )
            sync.retarget(target)
        self._workers.want(self._balancers)
        for balancer in self._balancers.values():
            balancer.wake()

    async def run(self) -> None:
        await self._workers.run()

    def set_ready(self, id: InstanceId, ready: bool) -> None:
        """A ready instance is registered. One that is not ready any more stays a member, but does not become one."""
        if not ready:
            self._ready.discard(id)
        elif id not in self._ready:
            self._ready.add(id)
            instance = self._records.get(id)
            if instance is not None:
                self._wake_balancers(instance)

    def observe(self, committed: Committed) -> None:
        for change in committed.changes:
            match change:
                case Put(instance):
                    self._records[instance.id] = instance
                    before = committed.before.get(instance.id)
                    if before is None or (before.state, before.provider_id) != (instance.state, instance.provider_id):
                        self._wake_balancers(instance)
                case Remove(id):
                    self._records.pop(id, None)
                    self._ready.discard(id)

    async def wait_deregistered(self, instance: Instance) -> None:
        """Until no balancer has the instance as a member or connections to it, or until that takes too long."""
        await self._wait_for_calls(instance)
        await self._wait_for_connections(instance)

    async def _wait_for_connections(self, instance: Instance) -> None:
        """A balancer keeps connections for a delay of its own. The deadline of the instance's drain bounds the wait."""
        if instance.drain is None or instance.provider_id is None:
            return
        clock, deadline = self._context.clock, instance.drain.deadline
        for balancer in [each for each in self._balancers.values() if each.may_drain and each.is_used_by(instance)]:
            while (left := deadline - clock.steady()) > 0 and await balancer.is_draining(instance.provider_id):
                await clock.sleep(min(left, self._context.calls.waits.connections_check))

    async def _wait_for_calls(self, instance: Instance) -> None:
        holding = [balancer for balancer in self._balancers.values() if balancer.may_hold(instance)]
        if not holding:
            return
        assert instance.provider_id is not None
        try:
            async with asyncio.timeout(self._context.calls.waits.deregistration):
                for balancer in holding:
                    balancer.wake()
                for deregistered in [balancer.deregistered(instance.provider_id) for balancer in holding]:
                    await deregistered.wait()
        except TimeoutError:
            names = ", ".join(balancer.name for balancer in holding if balancer.may_hold(instance))
            log.warning(
                "failed to deregister instance in time: deleting it anyway",
                extra={"instance": instance.id, "balancers": names},
            )

    def _wake_balancers(self, instance: Instance) -> None:
        for balancer in self._balancers.values():
            if balancer.is_used_by(instance) or balancer.may_hold(instance):
                balancer.wake()
