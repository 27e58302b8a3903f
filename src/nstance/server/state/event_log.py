"""The history of what happens in a shard: reasons that observers see at once and the journal gets a little later.

One write for each would be too many, so events wait for each other and share the slot of a change that comes first. The
trap: while the journal cannot be written, people and agents go on to cause events. So only MAX_WAITING wait, and while
some are being written no others are queued behind them.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import islice

from nstance.clock import Clock
from nstance.model.decision import Reason, ReasonCode
from nstance.model.ids import DEFAULT_TENANT, GroupKey, GroupName, InstanceId, TenantId
from nstance.objects import slots
from nstance.server.state.commits import Commits, Committed

log = logging.getLogger(__name__)

MAX_WAITING = 1_000  # events for the journal; what is more is only in the log
WRITE_INTERVAL_SECONDS = 0.5
GATHER_SECONDS = 0.05  # often a change follows at once, and they share its slot


class EventLog:
    """Of one shard during one term."""

    def __init__(self, commits: Commits, *, tenants: Callable[[], Iterable[TenantId]], clock: Clock) -> None:
        self._commits = commits
        self._tenants = tenants
        self._clock = clock
        self._waiting: list[slots.LoggedReason] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._written_at = float("-inf")

    def record_for_all(self, code: ReasonCode, message: str) -> None:
        """Record an event that concerns every tenant of the shard."""
        log.warning(message)
        for tenant in sorted({*self._tenants(), DEFAULT_TENANT}):
            self.record(GroupKey(tenant, GroupName("")), code, message)

    def record(self, key: GroupKey, code: ReasonCode, message: str, instance: InstanceId | None = None) -> None:
        """Record an event that changes no record. The journal gets it with the next change or shortly after."""
        reasons = (Reason(code, message, instance),)
        self._commits.notify(Committed(key, (), reasons, {}))
        self.add(key, reasons)

    def add(self, key: GroupKey, reasons: Iterable[Reason]) -> None:
        """Add events that observers see elsewhere."""
        room = MAX_WAITING - len(self._waiting)
        self._waiting += islice((logged(reason, key) for reason in reasons), room)
        if self._waiting and self._timer is None:
            self._schedule()

    def _schedule(self) -> None:
        now = self._clock.monotonic()
        delay = max(GATHER_SECONDS, self._written_at + WRITE_INTERVAL_SECONDS - now)
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        if self._writing is not None and not self._writing.done():
            self._written_at = self._clock.monotonic()
            self._schedule()
        else:
            self.write()

    def write(self) -> None:
        """Queue for the journal what waits."""
        self.close()
        self._timer = None
        if self._waiting:
            events, self._waiting, self._written_at = tuple(self._waiting), [], self._clock.monotonic()
            self._writing = self._commits.commit(reason=events)

    async def flush(self, *, timeout: float) -> None:
        """Wait until the journal has all events so far, at most twice `timeout`: events wait for earlier ones."""
        for _ in range(2):
            if self._writing is None or self._writing.done():
                self.write()
            if (barrier := self._commits.barrier()) is not None:
                await asyncio.wait({barrier}, timeout=timeout)

    def close(self) -> None:
        """Write no more by itself."""
        if self._timer is not None:
            self._timer.cancel()


def logged(reason: Reason, key: GroupKey | None) -> slots.LoggedReason:
    """A reason as the journal keeps it. `key` is None where the entry's records name the group."""
    tenant, group = (key.tenant, key.name) if key is not None else ("", "")
    return slots.LoggedReason(reason.code.value, reason.message, reason.instance or "", tenant, group)
