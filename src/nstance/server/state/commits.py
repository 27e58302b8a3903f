"""The way of a shard's changes into the journal, and who is shown them afterwards."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

from nstance.model.decision import Reason
from nstance.model.ids import GroupKey, InstanceId, TenantId
from nstance.model.instance import Change, Instance
from nstance.model.rollout import GroupRecord
from nstance.objects import journal_writer, slots


@dataclass(frozen=True, slots=True)
class Committed:
    """What observers of a shard see, after it is durable."""

    key: GroupKey  # without a name where it concerns all groups of a tenant
    changes: tuple[Change, ...]
    reasons: tuple[Reason, ...]
    before: Mapping[InstanceId, Instance]  # of the instances that changed
    posted: float = 0.0  # when the first event came that it answers, and when it was decided: both monotonic
    decided: float = 0.0


Observer = Callable[[Committed], None]
SlotObserver = Callable[[slots.Slot], None]


@dataclass(eq=False)
class Commits:
    """Of one shard during one term."""

    writer: journal_writer.Writer
    _: KW_ONLY
    epoch: int
    on_failure: Callable[[str, Exception], None]  # an observer raised
    on_commit: Callable[[slots.Entry], None] = lambda entry: None  # an entry is queued for the journal
    _entries: int = 0
    _observers: list[Observer] = field(default_factory=list)
    _slot_observers: list[SlotObserver] = field(default_factory=list)

    def subscribe(self, *observers: Observer) -> None:
        self._observers += observers

    def subscribe_slots(self, *observers: SlotObserver) -> None:
        """Those that want whole slots, with the numbers that make the IDs of events."""
        self._slot_observers += observers

    def on_append(self, slot: slots.Slot) -> None:
        """The slot is in the journal."""
        for observer in self._slot_observers:
            observer(slot)

    def commit(
        self,
        *,
        reason: tuple[slots.LoggedReason, ...] = (),
        changes: tuple[Change, ...] = (),
        groups: tuple[GroupRecord, ...] = (),
        drainers: Mapping[TenantId, bool] | None = None,
    ) -> "asyncio.Future[None]":
        """Queue an entry for the journal; the future is done when it is durable."""
        self._entries += 1
        id = f"{self.epoch}-{self._entries}"
        entry = slots.Entry(id=id, reason=reason, changes=changes, groups=groups, drainers=drainers or {})
        self.on_commit(entry)
        return self.writer.commit(entry)

    def barrier(self) -> "asyncio.Future[None] | None":
        """Done when all that was queued so far is durable; None if it is."""
        return self.writer.barrier()

    def notify(self, committed: Committed) -> None:
        for observe in self._observers:
            try:
                observe(committed)
            except Exception as problem:
                self.on_failure("observe a decision", problem)
