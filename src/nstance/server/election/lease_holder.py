"""Holding the lease: renewing it, sending heartbeats, and knowing until when work may start.

While all members promise to keep still, storage is asked rarely; as soon as one does not, often. The traps: a renewal in
flight may already stand in storage, so the holder counts by the stricter of the two records; and only one task writes.
"""

import asyncio
import logging
from dataclasses import dataclass, replace

from nstance import points
from nstance.core import election as rules
from nstance.core.claims import Claim
from nstance.objects import errors, lease
from nstance.objects.journal import DeposedError
from nstance.objects.lease import Holder, Lease
from nstance.objects.port import Version
from nstance.server.election import peers
from nstance.server.election.context import ElectionContext
from nstance.server.election.shard_time import ShardTime
from nstance.server.election.standby import NEVER
from nstance.server.election.term import Term

log = logging.getLogger(__name__)

CLAIM_ATTEMPTS = 4
RELEASE_SECONDS = 2.0
BEATS_KEPT = 50


@dataclass(slots=True)
class _Linked:
    holder: Holder
    link: peers.Link


class HeldLease:
    """One term's lease."""

    def __init__(self, seat: ElectionContext, time: ShardTime, *, tail: int) -> None:
        self.tail = tail  # of the journal, as told in the lease and in heartbeats
        self._seat = seat
        self._time = time
        self._sent = NEVER  # when the confirmed record was sent
        self._pending: tuple[Lease, float] | None = None  # may or may not stand in storage; when it was sent
        self._links: dict[str, _Linked] = {}
        self._answered: dict[str, rules.Answer] = {}
        self._beats: dict[int, rules.Answer] = {}  # those sent lately: what an answer to them holds
        self._offered: dict[str, int] = {}  # the newest sequence that each standby was told and may claim
        self._beat_number = 0
        self._frozen_beats = 0
        self._renew_now = asyncio.Event()
        self._standby_seen = NEVER
        self._trouble = ""  # what the storage said last, while a renewal does not get through
        self.lease: Lease
        self._version: Version
        self.term: Term

    async def claim(self, target: Claim) -> Term:
        """Take the lease. Raises settle.Overtaken and storage errors."""
        seat, attempts = self._seat, 0
        if not target.alone:
            self._standby_seen = seat.clock.monotonic()
        await self._time.before_claim()
        record = self._compose(target.epoch, sequence=1, members=())

        async def retry(problem: errors.StorageError) -> None:
            nonlocal attempts
            attempts += 1
            if attempts >= CLAIM_ATTEMPTS:
                raise problem
            await seat.clock.sleep(seat.rng.uniform(0.02, 0.1))

        await points.reach(points.Point.BEFORE_LEASE)
        self._sent = seat.clock.monotonic()
        seen = None if target.version is None else Version(target.version)
        self._version = await lease.write(seat.store, seat.key, record, seen=seen, timeout=seat.timeout, retry=retry)
        await points.reach(points.Point.AFTER_LEASE)
        self.lease = record
        odd = await self._time.claimed()
        if self._time.late:
            self._renew_now.set()
        self.term = Term(target.epoch, seat.clock, reread=self._still_ours, odd=odd)
        self._refresh()
        return self.term

    async def renew(self) -> None:
        """The only task that writes the lease while the term lasts."""
        while True:
            now = self._seat.clock.monotonic()
            due = rules.renew_at(
                self._seat.adapted(),
                self._members_of(self.lease),
                sent=self._sent,
                now=now,
                standby_near=self._standby_near(now),
            )
            if now < due and not self._renew_now.is_set():
                await self._seat.wait(self._renew_now, min(due - now, self._seat.timings.heartbeat))
                continue
            self._renew_now.clear()
            await self._write(self._compose(self.term.epoch, self.lease.sequence + 1, self._members(now)))

    async def _write(self, record: Lease) -> None:
        seat, term = self._seat, self.term
        sent, offsets = seat.clock.monotonic(), term.offsets()
        self._pending = (record, sent)
        self._send_heartbeats()  # if we die while it is written, standbys know what it is
        self._refresh()

        async def retry(problem: errors.StorageError) -> None:
            if term.ended.is_set():
                raise DeposedError(term.why)
            self._trouble = f": {problem}"
            await seat.clock.sleep(seat.rng.uniform(0.03, 0.12))

        await points.reach(points.Point.BEFORE_LEASE)
        version = await lease.write(seat.store, seat.key, record, seen=self._version, timeout=seat.timeout, retry=retry)
        await points.reach(points.Point.AFTER_LEASE)
        self.lease, self._version, self._sent, self._pending, self._trouble = record, version, sent, None, ""
        term.rebase(offsets)
        self._send_heartbeats()
        self._refresh()

    async def beat(self) -> None:
        while True:
            self._send_heartbeats()
            self._refresh()
            self._end_if_long_frozen()
            await self._seat.clock.sleep(self._seat.timings.heartbeat)

    def _send_heartbeats(self) -> None:
        now, timings, configured = self._seat.clock.monotonic(), self._seat.adapted(), self._seat.timings
        self._beat_number += 1
        self._beats[self._beat_number] = rules.Answer(now, timings.promise, timings.crash_wait)
        self._beats.pop(self._beat_number - BEATS_KEPT, None)
        for incarnation, linked in self._links.items():
            linked.link.send(
                peers.Heartbeat(
                    epoch=self.term.epoch,
                    sequence=self._offer(incarnation, now),
                    version=self._version,
                    tail=self.tail,
                    number=self._beat_number,
                    member=incarnation in self._offered_to(self.lease),
                    at=round(self._seat.clock.steady(), 3),
                    promise=timings.promise if timings.promise != configured.promise else 0.0,
                    crash_wait=timings.crash_wait if timings.crash_wait != configured.crash_wait else 0.0,
                )
            )

    def _offer(self, incarnation: str, now: float) -> int:
        """The newest record that a standby may claim when its promise has run out, confirmed or on its way. Not one that
        was written because this standby had not answered lately: it would be worth no more than the last answer."""
        if rules.is_fresh(self._seat.adapted(), self._answered.get(incarnation), now):
            for record in (self.lease, *(self._pending or ())[:1]):
                if any(m.incarnation == incarnation for m in record.members):
                    self._offered[incarnation] = record.sequence
        return self._offered.get(incarnation, 0)

    def _offered_to(self, record: Lease) -> set[str]:
        """The members that may claim this record without having seen it for long."""
        members = (member.incarnation for member in record.members)
        return {name for name in members if self._offered.get(name, 0) >= record.sequence}

    def _end_if_long_frozen(self) -> None:
        """Whoever leads meanwhile would take the agents that stay here for silent: they are let go in time."""
        self._frozen_beats = 0 if self.term.leading() else self._frozen_beats + 1
        most = self._seat.adapted().frozen_most
        if self._frozen_beats * self._seat.timings.heartbeat > most:
            self.term.end(f"the lease could not be renewed for {most:.0f} s{self._trouble}")

    async def serve(self, link: peers.Link, join: peers.Join) -> None:
        """A standby's link, until it ends. Raises LinkClosed, BadMessage."""
        if join.server != link.server or join.fingerprint != link.fingerprint:
            raise peers.BadMessageError("a peer claims to be another server than its certificate says")
        name = join.incarnation
        holder = Holder(server=join.server, incarnation=name, addresses=join.addresses, fingerprint=join.fingerprint)
        linked = self._links[name] = _Linked(holder, link)
        log.info("a standby joined", extra={"standby": join.server})
        try:
            while not self.term.ended.is_set():
                self._hear(name, await link.receive())
        finally:
            if self._links.get(name) is linked:
                del self._links[name]

    def _hear(self, name: str, message: peers.Message) -> None:
        match message:
            case peers.Promise() if message.epoch == self.term.epoch:
                beat, before = self._beats.get(message.number), self._answered.get(name)
                if beat is None or (before is not None and beat.sent < before.sent):
                    return
                self._answered[name] = beat
                self._standby_seen = self._seat.clock.monotonic()
                if all(m.incarnation != name for m in self.lease.members):
                    self._renew_now.set()  # it keeps its promises: let the lease name it
                self._refresh()
            case peers.Refusal() if message.epoch > self.term.epoch:
                self._renew_now.set()  # the next write will show who is right
            case _:
                pass

    async def release(self) -> None:
        """Give the lease back, so that a standby need not wait. `renew` must have ended."""
        await points.reach(points.Point.BEFORE_RELEASE)
        try:
            async with asyncio.timeout(max(RELEASE_SECONDS, 2 * self._seat.timeout())):
                version = await self._write_free()
        except (errors.StorageError, TimeoutError) as problem:
            log.warning(
                "the lease could not be released, a standby has to wait for its end", extra={"error": str(problem)}
            )
            return
        for linked in self._links.values():
            linked.link.send(peers.Released(self.term.epoch, version))
        await self._seat.clock.sleep(0.02)  # let the word out before the links close

    async def _write_free(self) -> Version:
        seat = self._seat
        if self._pending is not None:
            found = await seat.read()
            if found is None or found.lease.op not in self._own_ops():
                raise errors.ConflictError("the lease is somebody else's now")
            self.lease, self._version = found.lease, found.version
        record = replace(self._compose(self.term.epoch, self.lease.sequence + 1, ()), free=True)

        async def retry(problem: errors.StorageError) -> None:
            await seat.clock.sleep(seat.rng.uniform(0.03, 0.1))

        return await lease.write(seat.store, seat.key, record, seen=self._version, timeout=seat.timeout, retry=retry)

    def close(self) -> None:
        self._time.led(self._version)
        for linked in list(self._links.values()):
            linked.link.close()

    def _refresh(self) -> None:
        """Until when work may start: by the record confirmed, and by the one that may already stand in its place."""
        until = self._until(self.lease, self._sent)
        if self._pending is not None:
            until = min(until, self._until(*self._pending))
        self.term.confirm(until, length=self.lease.promise if self.lease.members else self.lease.length)

    def _until(self, record: Lease, sent: float) -> float:
        return rules.valid_until(self._members_of(record), sent=sent, length=record.length, promise=record.promise)

    def _members_of(self, record: Lease) -> rules.Members:
        return rules.Members([m.incarnation for m in record.members], self._answered, self._offered_to(record))

    def _members(self, now: float) -> tuple[Holder, ...]:
        """Those that answer, and those that did not long ago: a member is not dropped for a hiccup."""
        patience = self._seat.timings.member_silence

        def answered(incarnation: str, otherwise: float) -> float:
            answer = self._answered.get(incarnation)
            return otherwise if answer is None else answer.sent

        kept = {m.incarnation: m for m in self.lease.members if now - answered(m.incarnation, self._sent) < patience}
        for incarnation, linked in self._links.items():
            # A link may hang open for long after the last answer came through it.
            if now - answered(incarnation, NEVER) < patience:
                # A server that restarted takes the place of its former self.
                kept = {i: m for i, m in kept.items() if m.server != linked.holder.server}
                kept[incarnation] = linked.holder
        return tuple(kept[i] for i in sorted(kept))

    def _compose(self, epoch: int, sequence: int, members: tuple[Holder, ...]) -> Lease:
        seat, timings = self._seat, self._seat.adapted()
        near = self._standby_near(seat.clock.monotonic())
        return Lease(
            epoch=epoch,
            sequence=sequence,
            op=f"{seat.rng.bits(96):024x}",
            holder=seat.me,
            free=False,
            length=rules.outsider_length(timings, members=len(members), standby_near=near),
            promise=timings.promise,
            crash_wait=timings.crash_wait,
            members=members,
            tail=self.tail,
            at=round(seat.clock.steady(), 3),
        )

    def _standby_near(self, now: float) -> bool:
        return now - self._standby_seen < self._seat.timings.standby_memory

    def _own_ops(self) -> set[str]:
        return {self.lease.op} | ({self._pending[0].op} if self._pending is not None else set())

    async def _still_ours(self) -> bool:
        while not self.term.ended.is_set():
            try:
                found = await self._seat.read()
            except (errors.StorageError, TimeoutError):
                await self._seat.clock.sleep(self._seat.rng.uniform(0.05, 0.2))
                continue
            return found is not None and (found.lease.op in self._own_ops() or found.lease.holder == self._seat.me)
        return False
