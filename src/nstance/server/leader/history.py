"""What happened and why: each decision's reasons, in the log, in metrics and in the cache for queries.

Queries are answered from the journal's slots, the leader's own as well as those that a standby reads along: a slot's number
and a reason's place in it are the event's ID, and the time is the slot's. So every server tells the same events with the
same IDs, and whoever follows them goes on with the next leader where the last one stopped. The trap: what is not in the
journal yet must not be told, because the next leader would give its ID to something else.
"""

import functools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from nstance.clock import Clock
from nstance.model.decision import TROUBLE
from nstance.model.ids import InstanceId, TenantId
from nstance.model.instance import Instance, Put, Remove
from nstance.objects import slots
from nstance.server.cache.cache import Event
from nstance.server.state.shard import Committed
from nstance.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

PLACES = 1 << 20  # for the reasons of one slot, far more than fit into it
FIRST = 1 << 52  # behind all IDs that older versions made of the time, in microseconds; and exact in a double


class Keeper(Protocol):
    """Where history is kept for queries; never waits, never raises."""

    def retain_instances(self, instances: Collection[InstanceId]) -> None: ...

    def remove_instance(self, instance: InstanceId) -> None: ...

    def put_events(self, first: int, make: Callable[[], Sequence[Event]], *, count: int) -> None: ...


class History:
    def __init__(self, keeper: Keeper, metrics: Metrics, clock: Clock) -> None:
        self._keeper = keeper
        self._metrics = metrics
        self._clock = clock

    def restore(self, instances: Mapping[InstanceId, Instance]) -> None:
        """A term begins: only its records are kept."""
        self._keeper.retain_instances(instances)

    def keep(self, slot: slots.Slot) -> None:
        """It is in the journal, whoever wrote it. The same one may be told again."""
        count = sum(len(entry.reason) for entry in slot.entries)
        if count:
            self._keeper.put_events(first_id(slot.number), functools.partial(events, slot), count=count)

    def observe(self, committed: Committed) -> None:
        for reason in committed.reasons:
            self._metrics.decided(reason.code)
            log.log(
                logging.WARNING if reason.code in TROUBLE else logging.INFO,
                reason.message,
                extra={
                    "reason": reason.code.value,
                    "group": str(committed.key),
                    "instance": reason.instance or "",
                },
            )
        for change in committed.changes:
            match change:
                case Put(instance):
                    drain = (before := committed.before.get(instance.id)) and before.drain
                    if drain and instance.drain is None:
                        self._metrics.drained(instance.key, self._clock.steady() - drain.started)
                case Remove(id):
                    self._keeper.remove_instance(id)


def first_id(slot: int) -> int:
    return FIRST + slot * PLACES


def events(slot: slots.Slot) -> list[Event]:
    """What a slot tells. A reason without a tenant is about the group whose records its entry changes."""
    numbered = zip(_reasons(slot), range(first_id(slot.number), first_id(slot.number + 1)), strict=False)
    return [
        Event(
            id=id,
            time=slot.at,
            tenant=tenant,
            group=group,
            instance=why.instance,
            code=why.code,
            message=why.message,
        )
        for (tenant, group, why), id in numbered
        if tenant
    ]


def _reasons(slot: slots.Slot) -> Iterator[tuple[TenantId, str, slots.LoggedReason]]:
    for entry in slot.entries:
        key = next((change.instance.key for change in entry.changes if isinstance(change, Put)), None)
        for why in entry.reason:
            if why.tenant or key is None:
                yield TenantId(why.tenant), why.group, why
            else:
                yield key.tenant, key.name, why
