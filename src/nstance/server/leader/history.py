"""What happened and why: the reasons of decisions, in the log, in metrics and in the cache for queries.

Queries are answered from journal slots, on the leader and on standbys: an event's ID is made of the slot's number and the
reason's position in it. So every server shows the same events with the same IDs, and a client that follows them continues
with the next leader. The trap: what is not in the journal yet must not be shown, because the next leader would give its ID
to something else.
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
from nstance.server.state.commits import Committed
from nstance.telemetry import trace_ids
from nstance.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

IDS_PER_SLOT = 1 << 20  # far more reasons than fit into one
FIRST_ID = 1 << 52  # above all IDs that older versions made of the time in microseconds; exact in a double


class Keeper(Protocol):
    """Keeps history for queries; never waits, never raises."""

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
        """Keep the events of a slot that is in the journal. The same slot may be kept again."""
        count = sum(len(entry.reason) for entry in slot.entries)
        if count:
            self._keeper.put_events(first_id(slot.number), functools.partial(events, slot), count=count)

    def observe(self, committed: Committed) -> None:
        records = {change.instance.id: change.instance for change in committed.changes if isinstance(change, Put)}
        for reason in committed.reasons:
            self._metrics.decided(reason.code)
            id = reason.instance
            key = committed.key
            about = {"group": str(key)} if key.name else {"tenant": key.tenant}
            if id is not None:
                about |= {"instance": id, "trace_id": _trace_id(id, records, committed)}
            log.log(
                logging.WARNING if reason.code in TROUBLE else logging.INFO,
                reason.message,
                extra={"reason": reason.code.value, **about},
            )
        for change in committed.changes:
            match change:
                case Put(instance):
                    drain = (before := committed.before.get(instance.id)) and before.drain
                    if drain and instance.drain is None:
                        self._metrics.drained(instance.key, self._clock.steady() - drain.started)
                case Remove(id):
                    self._keeper.remove_instance(id)


def _trace_id(id: InstanceId, records: Mapping[InstanceId, Instance], committed: Committed) -> str:
    instance = records.get(id)
    return trace_ids.of_change(committed.before.get(id), instance) if instance is not None else trace_ids.end_of(id)


def first_id(slot: int) -> int:
    return FIRST_ID + slot * IDS_PER_SLOT


def events(slot: slots.Slot) -> list[Event]:
    """The events of a slot. A reason without a tenant is about the group whose records its entry changes."""
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
