"""What happened and why: each decision's reasons, in the log, in metrics and in the cache for queries."""

import logging
from collections.abc import Mapping
from typing import Protocol

from nstance.clock import Clock
from nstance.model.decision import TROUBLE
from nstance.model.ids import InstanceId, TenantId
from nstance.model.instance import Instance, Put, Remove
from nstance.objects import slots
from nstance.server.shard import Committed
from nstance.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

TROUBLE_CODES = frozenset(code.value for code in TROUBLE)


class Keeper(Protocol):
    """Where history is kept for queries; never waits, never raises."""

    def put_instance(self, instance: Instance) -> None: ...

    def remove_instance(self, instance: InstanceId) -> None: ...

    def put_event(
        self, *, tenant: TenantId, group: str, instance: str, code: str, message: str, trouble: bool
    ) -> None: ...


class History:
    def __init__(self, keeper: Keeper, metrics: Metrics, clock: Clock) -> None:
        self._keeper = keeper
        self._metrics = metrics
        self._clock = clock

    def restore(self, instances: Mapping[InstanceId, Instance]) -> None:
        """A term begins: the projection follows its records."""
        for instance in instances.values():
            self._keeper.put_instance(instance)

    def read_along(self, slot: slots.Slot) -> None:
        """A standby keeps what the leader decided, so that the history outlives the leader."""
        for entry in slot.entries:
            key = next((change.instance.key for change in entry.changes if isinstance(change, Put)), None)
            for why in entry.reason:
                if not why.tenant and key is None:
                    continue
                self._keeper.put_event(
                    tenant=TenantId(why.tenant) if why.tenant or key is None else key.tenant,
                    group=why.group if why.tenant or key is None else key.name,
                    instance=why.instance,
                    code=why.code,
                    message=why.message,
                    trouble=why.code in TROUBLE_CODES,
                )

    def observe(self, committed: Committed) -> None:
        for reason in committed.reasons:
            trouble = reason.code in TROUBLE
            self._metrics.decided(reason.code)
            self._keeper.put_event(
                tenant=committed.key.tenant,
                group=committed.key.name,
                instance=reason.instance or "",
                code=reason.code.value,
                message=reason.message,
                trouble=trouble,
            )
            log.log(
                logging.WARNING if trouble else logging.INFO,
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
                    self._keeper.put_instance(instance)
                    drain = (before := committed.before.get(instance.id)) and before.drain
                    if drain and instance.drain is None:
                        self._metrics.drained(instance.key, self._clock.steady() - drain.started)
                case Remove(id):
                    self._keeper.remove_instance(id)
