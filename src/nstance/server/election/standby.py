"""Watches the lease, keeps promises to its holder, and decides when to claim it.

A standby that gets heartbeats promises not to challenge the leader, and does not read storage. A promise belongs to one
epoch. None is made while a claim is under way: the leader would continue while the claim takes its lease.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field

from nstance.core import election as rules
from nstance.core.election import Attempt, Claim
from nstance.objects import errors, lease
from nstance.objects.lease import Lease, ReadLease
from nstance.objects.port import Stored, Version
from nstance.server.election import peers
from nstance.server.election.context import ElectionContext
from nstance.server.election.shard_time import ShardTime

log = logging.getLogger(__name__)

NEVER = float("-inf")
READ, CLAIM, JOURNAL = "read the lease", "claim the lease", "read the journal"  # what an election asks of storage


@dataclass(eq=False)
class Standby:
    context: ElectionContext
    time: ShardTime
    _: KW_ONLY
    floor: Callable[[], Awaitable[int]]
    on_tail: Callable[[int], None]
    claiming: bool = False
    hold_off: float = NEVER
    tail: int = 0  # the longest journal that a lease or heartbeat named
    problems: dict[str, str] = field(default_factory=dict)  # what storage does not do now, and why
    _seen: ReadLease | None = None
    _seen_at: float = 0.0
    _missing_since: float | None = None
    _max_epoch: int = 0
    _promise_until: float = NEVER
    _crash_until: float = NEVER  # the same, once the leader is known to be dead
    _is_leader_dead: bool = False
    _heartbeat: peers.Heartbeat | None = None  # the last one that was promised upon
    _claimable: tuple[str, peers.Heartbeat] | None = None  # the leader's incarnation and its last heartbeat
    _released: peers.Released | None = None

    @property
    def lease(self) -> Lease | None:
        return self._seen.lease if self._seen is not None else None

    @property
    def leader_lease(self) -> Lease | None:
        """The lease of the leader to connect to; None if there is none."""
        known = self.lease
        if known is None or known.free or known.holder.incarnation == self.context.me.incarnation:
            return None
        return known if known.holder.addresses else None

    def on_storage(self, action: str, problem: Exception | None) -> None:
        """The outcome of a request, named as in "read the lease". Only the first failure of many is worth a line."""
        if problem is None:
            self.problems.pop(action, None)
            return
        level = logging.DEBUG if action in self.problems else logging.WARNING
        log.log(level, "failed to %s, will retry", action, extra={"error": str(problem) or "timed out"})
        self.problems[action] = str(problem) or "timed out"

    def has_promised(self) -> bool:
        return self.context.clock.monotonic() < self._kept_until

    @property
    def _kept_until(self) -> float:
        return min(self._promise_until, self._crash_until) if self._is_leader_dead else self._promise_until

    def on_leader_dead(self) -> None:
        """The leader's host refuses connections: its process is most likely gone. A firewall looks the same although the
        leader lives, so this only shortens the wait to `crash_wait`, which the leader takes into account."""
        self._is_leader_dead = True

    def on_overtaken(self, found: Stored | None) -> Claim | None:
        """A claim was too late, and this lease is there instead. Returns what to claim at once, if it is a renewal that
        the leader had announced with its last heartbeat; otherwise the lease has to be watched again."""
        self._seen = None
        claimable, self._claimable = self._claimable, None
        if found is None or claimable is None:
            return None
        incarnation, beat = claimable
        return rules.claim_renewed(
            _known(lease.decode(found.body), found.version),
            incarnation=self.context.me.incarnation,
            leader=incarnation,
            announced_epoch=beat.epoch,
            announced_sequence=beat.sequence,
        )

    def reset(self, *, epoch: int, hold_off: float) -> None:
        """A term of this server is over."""
        self._seen = self._heartbeat = self._released = self._missing_since = self._claimable = None
        self._promise_until = self._crash_until = NEVER
        self._is_leader_dead = False
        self._max_epoch = max(self._max_epoch, epoch)
        self.claiming, self.hold_off = False, hold_off

    async def target(self) -> Attempt:
        """What to claim, or how long to wait before looking again."""
        now = self.context.clock.monotonic()
        if now < self.hold_off:
            return None, await self._follow_leader(now)
        if self._released is not None:
            released, self._released = self._released, None
            claim = rules.claim_offered(
                released.epoch, released.version, newest_epoch=self._max_epoch, reason="the leader released the lease"
            )
            if claim is not None:
                return claim, 0.0
        if now < self._kept_until:
            return None, self._kept_until - now
        if self._heartbeat is not None:
            beat, self._heartbeat = self._heartbeat, None
            lost = "its port refuses connections" if self._is_leader_dead else "no heartbeat came in time"
            reason = f"the leader is gone: {lost}"
            claim = rules.claim_offered(beat.epoch, beat.version, newest_epoch=self._max_epoch, reason=reason)
            if claim is not None and beat.member:
                return claim, 0.0
        try:
            found = await self._read()
        except (errors.StorageError, TimeoutError):
            return None, self.context.rng.uniform(0.1, 0.4)
        return await self._wait_for_missing() if found is None else self._evaluate(found)

    async def _follow_leader(self, now: float) -> float:
        """While this server holds off it claims nothing, but it must know the leader to stand by. Returns how long to wait."""
        if now >= self._kept_until:
            with contextlib.suppress(errors.StorageError, TimeoutError):
                found = await self._read()
                if found is not None:
                    self._evaluate(found)
        return min(self.hold_off - now, max(self.context.timings.poll, self._kept_until - now))

    async def _read(self) -> ReadLease | None:
        try:
            found = await self.context.read()
        except (errors.StorageError, TimeoutError) as problem:
            self.on_storage(READ, problem)
            raise
        self.on_storage(READ, None)
        return found

    def _evaluate(self, found: ReadLease) -> Attempt:
        now, me, current = self.context.clock.monotonic(), self.context.me, found.lease
        self._missing_since = None
        if self._seen is None or self._seen.version != found.version:
            self._seen, self._seen_at = found, now
            self.time.on_lease(found)
        self._max_epoch = max(self._max_epoch, current.epoch)
        self.tail = max(self.tail, current.tail)
        return rules.claim_known(
            _known(current, found.version),
            server=me.server,
            incarnation=me.incarnation,
            seen_at=self._seen_at,
            now=now,
            poll=self.context.timings.poll,
        )

    async def _wait_for_missing(self) -> Attempt:
        """There is no lease. That is normal for a new shard; otherwise it was removed, and its holder may still act."""
        context = self.context
        try:
            floor = max(await self.floor(), self._max_epoch)
            if floor and await context.read() is not None:
                return None, 0.0  # it was created, and the journal written, between the two reads
        except (errors.StorageError, TimeoutError) as problem:
            self.on_storage(JOURNAL, problem)
            return None, context.rng.uniform(0.2, 0.6)
        self.on_storage(JOURNAL, None)
        now = context.clock.monotonic()
        if floor and self._missing_since is None:
            log.error(
                "lease object is missing although the shard has a journal: it was removed by hand or by a lifecycle rule"
            )
            self._seen, self._missing_since = None, now
        missing_for = now - self._missing_since if self._missing_since is not None else 0.0
        return rules.claim_missing(
            context.adapted(), last_epoch=floor, missing_for=missing_for, poll=context.timings.poll
        )

    def on_message(self, message: peers.Message, link: peers.Link, known: Lease) -> bool:
        """A message of the leader whose lease is `known`. Returns whether the lease is free now."""
        holder = known.holder
        match message:
            case peers.Heartbeat():
                if self.claiming:
                    return False
                if message.epoch < self._max_epoch or link.fingerprint != holder.fingerprint:
                    link.send(peers.Refusal(self._max_epoch))
                    return False
                self._max_epoch = message.epoch
                self.problems.clear()  # they do not matter while somebody leads
                self._promise(message, known)
                self._heartbeat = message
                self._claimable = (holder.incarnation, message) if message.member else None
                self.tail = max(self.tail, message.tail)
                self.on_tail(message.tail)
                self.time.set_leader_time(message.at)
                link.send(peers.Promise(message.epoch, message.number))
                return False
            case peers.Released():
                if message.epoch < self._max_epoch or link.fingerprint != holder.fingerprint:
                    return False
                self._released = message
                self._promise_until = self._crash_until = NEVER
                return True
            case _:
                raise peers.BadMessageError(f"a leader does not send {type(message).__name__}")

    def _promise(self, beat: peers.Heartbeat, known: Lease) -> None:
        """Never shorter than an earlier promise: the leader may still count on that one."""
        received, promise = self.context.clock.monotonic(), beat.promise or known.promise
        crash_wait = beat.crash_wait or known.crash_wait or promise
        until = rules.promise_until(received=received, promise=promise)
        self._promise_until = max(self._promise_until, until)
        self._crash_until = max(self._crash_until, rules.promise_until(received=received, promise=crash_wait))
        self._is_leader_dead = False


def _known(read: Lease, version: Version) -> rules.KnownLease:
    return rules.KnownLease(
        epoch=read.epoch,
        sequence=read.sequence,
        version=version,
        free=read.free,
        server=read.holder.server,
        incarnation=read.holder.incarnation,
        members=[member.incarnation for member in read.members],
        length=read.length,
        promise=read.promise,
    )
