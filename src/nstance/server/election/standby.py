"""Standing by: watching the lease, keeping promises to its holder, and knowing when to claim it.

A standby that hears the holder promises to keep still, and asks storage nothing. A promise belongs to one epoch, and none
is given while a claim is on its way: it would let the holder go on while the claim takes its lease.
"""

import logging
from collections.abc import Awaitable, Callable

from nstance.core import claims
from nstance.core import election as rules
from nstance.core.claims import Attempt, Claim
from nstance.objects import errors, lease
from nstance.objects.lease import Lease, ReadLease
from nstance.objects.port import Stored, Version
from nstance.server.election import peers
from nstance.server.election.context import ElectionContext
from nstance.server.election.shard_time import ShardTime

log = logging.getLogger(__name__)

NEVER = float("-inf")


class Standby:
    def __init__(
        self,
        seat: ElectionContext,
        time: ShardTime,
        *,
        floor: Callable[[], Awaitable[int]],
        heard_tail: Callable[[int], None],
    ) -> None:
        self.claiming = False
        self.hold_off = NEVER
        self._seat = seat
        self._time = time
        self._floor = floor
        self._heard_tail = heard_tail
        self._seen: ReadLease | None = None
        self._seen_at = 0.0
        self._missing_since: float | None = None
        self._max_epoch = 0
        self.tail = 0  # the journal was at least so long, as leases and heartbeats told
        self._promise_until = NEVER
        self._crash_until = NEVER  # the same, once the leader was found dead
        self._found_dead = False
        self._heartbeat: peers.Heartbeat | None = None  # the last one promised upon
        self._claimable: tuple[str, peers.Heartbeat] | None = None  # the leader's incarnation, and what it said last
        self._released: peers.Released | None = None

    @property
    def lease(self) -> Lease | None:
        return self._seen.lease if self._seen is not None else None

    @property
    def led_by(self) -> Lease | None:
        """The lease of a leader to hold a link to."""
        known = self.lease
        if known is None or known.free or known.holder.incarnation == self._seat.me.incarnation:
            return None
        return known if known.holder.addresses else None

    def promised(self) -> bool:
        return self._seat.clock.monotonic() < self._kept_until

    @property
    def _kept_until(self) -> float:
        return min(self._promise_until, self._crash_until) if self._found_dead else self._promise_until

    def leader_found_dead(self) -> None:
        """There is no link to the leader any more, and its host refuses another one: its process is most likely gone. A
        firewall can say the same of a leader that lives, so this only shortens the wait to what the leader reckons with."""
        self._found_dead = True

    def overtaken(self, found: Stored | None) -> Claim | None:
        """A claim came too late: this is there instead. What to claim at once, if it is a renewal that the leader had
        announced before it fell silent; otherwise the lease has to be watched again."""
        self._seen = None
        said, self._claimable = self._claimable, None
        if found is None or said is None:
            return None
        incarnation, beat = said
        return claims.claim_renewed(
            _known(lease.decode(found.body), found.version),
            incarnation=self._seat.me.incarnation,
            leader=incarnation,
            announced_epoch=beat.epoch,
            announced_sequence=beat.sequence,
        )

    def begin(self, *, epoch: int, hold_off: float) -> None:
        """A term of this server's own is over."""
        self._seen = self._heartbeat = self._released = self._missing_since = self._claimable = None
        self._promise_until = self._crash_until = NEVER
        self._found_dead = False
        self._max_epoch = max(self._max_epoch, epoch)
        self.claiming, self.hold_off = False, hold_off

    async def target(self) -> Attempt:
        """What to claim, or how long to wait before looking again."""
        now = self._seat.clock.monotonic()
        if now < self.hold_off:
            return None, self.hold_off - now
        if self._released is not None:
            released, self._released = self._released, None
            claim = claims.claim_offered(released.epoch, released.version, newest_epoch=self._max_epoch)
            if claim is not None:
                return claim, 0.0
        if now < self._kept_until:
            return None, self._kept_until - now
        if self._heartbeat is not None:
            beat, self._heartbeat = self._heartbeat, None
            claim = claims.claim_offered(beat.epoch, beat.version, newest_epoch=self._max_epoch)
            if claim is not None and beat.member:
                return claim, 0.0
        try:
            found = await self._seat.read()
        except (errors.StorageError, TimeoutError) as problem:
            log.debug("could not read the lease", extra={"error": str(problem)})
            return None, self._seat.rng.uniform(0.1, 0.4)
        return await self._missing() if found is None else self._judge(found)

    def _judge(self, found: ReadLease) -> Attempt:
        now, me, current = self._seat.clock.monotonic(), self._seat.me, found.lease
        self._missing_since = None
        if self._seen is None or self._seen.version != found.version:
            self._seen, self._seen_at = found, now
            self._time.read(found)
        self._max_epoch = max(self._max_epoch, current.epoch)
        self.tail = max(self.tail, current.tail)
        return claims.claim_known(
            _known(current, found.version),
            server=me.server,
            incarnation=me.incarnation,
            seen_at=self._seen_at,
            now=now,
            poll=self._seat.timings.poll,
        )

    async def _missing(self) -> Attempt:
        """No lease. Normal for a new shard; otherwise somebody removed it, and its holder may still act."""
        seat = self._seat
        try:
            floor = max(await self._floor(), self._max_epoch)
            if floor and await seat.read() is not None:
                return None, 0.0  # somebody made it, and wrote to the journal, between the two looks
        except (errors.StorageError, TimeoutError) as problem:
            log.debug("could not look at the journal", extra={"error": str(problem)})
            return None, seat.rng.uniform(0.2, 0.6)
        now = seat.clock.monotonic()
        if floor and self._missing_since is None:
            log.error(
                "the lease object is missing although the shard has a journal: it was removed by hand or by a rule"
            )
            self._seen, self._missing_since = None, now
        missing_for = now - self._missing_since if self._missing_since is not None else 0.0
        return claims.claim_missing(seat.adapted(), last_epoch=floor, missing_for=missing_for, poll=seat.timings.poll)

    def hear(self, message: peers.Message, link: peers.Link, known: Lease) -> bool:
        """Something came over the link to the leader, whose lease is known; says whether the lease is free now."""
        holder = known.holder
        match message:
            case peers.Heartbeat():
                if self.claiming:
                    return False
                if message.epoch < self._max_epoch or link.fingerprint != holder.fingerprint:
                    link.send(peers.Refusal(self._max_epoch))
                    return False
                self._max_epoch = message.epoch
                self._promise(message, known)
                self._heartbeat = message
                self._claimable = (holder.incarnation, message) if message.member else None
                self.tail = max(self.tail, message.tail)
                self._heard_tail(message.tail)
                self._time.last_seen(message.at)
                link.send(peers.Promise(message.epoch, message.number))
                return False
            case peers.Released():
                if message.epoch < self._max_epoch or link.fingerprint != holder.fingerprint:
                    return False
                self._released = message
                self._promise_until = self._crash_until = NEVER
                return True
            case _:
                raise peers.BadMessageError(f"a leader does not say {type(message).__name__}")

    def _promise(self, beat: peers.Heartbeat, known: Lease) -> None:
        """Never shorter than an earlier promise: the leader may still count on that one."""
        received, promise = self._seat.clock.monotonic(), beat.promise or known.promise
        crash_wait = beat.crash_wait or known.crash_wait or promise
        until = rules.promise_until(received=received, promise=promise)
        self._promise_until = max(self._promise_until, until)
        self._crash_until = max(self._crash_until, rules.promise_until(received=received, promise=crash_wait))
        self._found_dead = False


def _known(read: Lease, version: Version) -> claims.KnownLease:
    return claims.KnownLease(
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
