"""What a shard tells although no record changes: seen by its observers at once, in the journal a little later.

A write for each would be too many, so they wait for each other, and share the slot of a change that comes before their
time. The trap: while nothing can be written, people and agents go on to give reasons for notes, so only so many wait, and
while some are on their way to the journal no others follow them.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import islice

from nstance.clock import Clock
from nstance.model.decision import Reason, ReasonCode
from nstance.model.ids import DEFAULT_TENANT, GroupKey, GroupName, InstanceId, TenantId
from nstance.objects import journal, slots

log = logging.getLogger(__name__)

MOST = 1_000  # that wait for the journal; what is more is only in the log
EVERY = 0.5  # seconds; the journal is not written more often for them
SOON = 0.05  # often a change follows at once, and they share its slot


class EventLog:
    """Of one shard during one term."""

    def __init__(
        self,
        writer: journal.Writer,
        *,
        clock: Clock,
        entry_id: Callable[[], str],
        tenants: Callable[[], Iterable[TenantId]],
        show: Callable[[GroupKey, tuple[Reason, ...]], None],
    ) -> None:
        """`entry_id` makes a new one for the journal; `show` reaches the shard's observers."""
        self._writer = writer
        self._clock = clock
        self._entry_id = entry_id
        self._tenants = tenants
        self._show = show
        self._waiting: list[slots.LoggedReason] = []
        self._timer: asyncio.TimerHandle | None = None
        self._on_their_way: asyncio.Future[None] | None = None
        self._written_at = float("-inf")

    def announce(self, code: ReasonCode, message: str) -> None:
        """Something that concerns the whole shard: every tenant is told."""
        log.warning(message)
        for tenant in sorted({*self._tenants(), DEFAULT_TENANT}):
            self.tell(GroupKey(tenant, GroupName("")), code, message)

    def tell(self, key: GroupKey, code: ReasonCode, message: str, instance: InstanceId | None = None) -> None:
        """Something worth knowing that changes no record. The journal has it with the next change or shortly after, and
        then the history."""
        reasons = (Reason(code, message, instance),)
        self._show(key, reasons)
        self.add(key, reasons)

    def add(self, key: GroupKey, reasons: Iterable[Reason]) -> None:
        """For the journal alone: observers see them elsewhere."""
        room = MOST - len(self._waiting)
        self._waiting += islice((why(reason, key) for reason in reasons), room)
        if self._waiting and self._timer is None:
            self._write_later()

    def _write_later(self) -> None:
        now = self._clock.monotonic()
        delay = max(SOON, self._written_at + EVERY - now)
        self._timer = asyncio.get_running_loop().call_later(delay, self._write_in_turn)

    def _write_in_turn(self) -> None:
        if self._on_their_way is not None and not self._on_their_way.done():
            self._written_at = self._clock.monotonic()
            self._write_later()  # while nothing can be written, no more than these wait
        else:
            self.write()

    def write(self) -> None:
        """Queue for the journal what was told."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            told, self._waiting, self._written_at = tuple(self._waiting), [], self._clock.monotonic()
            self._on_their_way = self._writer.commit(slots.Entry(id=self._entry_id(), reason=told))

    async def written(self, *, within: float) -> None:
        """Wait until the journal has what was told so far, or for so long, or twice: notes wait for earlier ones."""
        for _ in range(2):
            if self._on_their_way is None or self._on_their_way.done():
                self.write()
            if (barrier := self._writer.barrier()) is not None:
                await asyncio.wait({barrier}, timeout=within)

    def close(self) -> None:
        """None are written any more by themselves."""
        if self._timer is not None:
            self._timer.cancel()


def why(reason: Reason, about: GroupKey | None) -> slots.LoggedReason:
    """As the journal keeps it. `about` is None where the entry's records name the group."""
    tenant, group = (about.tenant, about.name) if about is not None else ("", "")
    return slots.LoggedReason(reason.code.value, reason.message, reason.instance or "", tenant, group)
