"""Holds the lease: renews it, sends heartbeats, and knows until when work may start.

While all members promise not to challenge, the lease is renewed rarely; as soon as one does not, often. The traps: a
renewal in flight may already be in storage, so the holder counts by the stricter of the two records; and only one task
writes.
"""

import asyncio
import logging
from dataclasses import dataclass, replace

from nstance import points
from nstance.core import election as rules
from nstance.core.election import Claim
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
MAX_HEARTBEATS_KEPT = 50


@dataclass(slots=True)
class _LinkedStandby:
    holder: Holder
    link: peers.Link


class HeldLease:
    """One term's lease."""

    def __init__(self, context: ElectionContext, time: ShardTime, *, tail: int) -> None:
        self.tail = tail  # of the journal, named in the lease and in heartbeats
        self._context = context
        self._time = time
        self._sent = NEVER  # when the confirmed record was sent
        self._pending: tuple[Lease, float] | None = None  # may or may not be in storage; and when it was sent
        self._links: dict[str, _LinkedStandby] = {}
        self._answered: dict[str, rules.Answer] = {}
        self._beats: dict[int, rules.Answer] = {}  # sent lately: what an answer to them is worth
        self._offered: dict[str, int] = {}  # the newest sequence that each standby was sent and may claim
        self._beat_number = 0
        self._frozen_beats = 0
        self._renew_now = asyncio.Event()
        self._standby_seen = NEVER
        self._last_error = ""  # of storage, while a renewal fails
        self.lease: Lease
        self._version: Version
        self.term: Term

    async def claim(self, target: Claim) -> Term:
        """Take the lease. Raises OvertakenError and storage errors."""
        context, attempts = self._context, 0
        if not target.alone:
            self._standby_seen = context.clock.monotonic()
        await self._time.before_claim()
        record = self._compose(target.epoch, sequence=1, members=())

        async def retry(problem: errors.StorageError) -> None:
            nonlocal attempts
            attempts += 1
            if attempts >= CLAIM_ATTEMPTS:
                raise problem
            await context.clock.sleep(max(context.rng.uniform(0.02, 0.1), context.timings.write_gap / 4))

        await points.reach(points.Point.BEFORE_LEASE)
        self._sent = context.clock.monotonic()
        seen = None if target.version is None else Version(target.version)
        self._version = await lease.write(
            context.store, context.key, record, seen=seen, timeout=context.timeout, retry=retry
        )
        await points.reach(points.Point.AFTER_LEASE)
        self.lease = record
        clock_warning = await self._time.after_claim()
        if self._time.is_late:
            self._renew_now.set()
        self.term = Term(target.epoch, context.clock, reread=self._is_still_ours, clock_warning=clock_warning)
        self._refresh()
        return self.term

    async def renew(self) -> None:
        """The only task that writes the lease while the term lasts."""
        while True:
            now = self._context.clock.monotonic()
            due = rules.renew_at(
                self._context.adapted(),
                self._members_of(self.lease),
                sent=self._sent,
                now=now,
                standby_near=self._is_standby_near(now),
            )
            if self._renew_now.is_set():
                due = self._sent + self._context.timings.write_gap
                await self._context.clock.sleep(max(0.0, due - now))
            elif now < due:
                await self._context.wait(self._renew_now, min(due - now, self._context.timings.heartbeat))
                continue
            self._renew_now.clear()
            await self._write(self._compose(self.term.epoch, self.lease.sequence + 1, self._members(now)))

    async def _write(self, record: Lease) -> None:
        context, term = self._context, self.term
        sent, offsets = context.clock.monotonic(), term.offsets()
        self._pending = (record, sent)
        self._send_heartbeats()  # if this server dies during the write, standbys know the record
        self._refresh()

        async def retry(problem: errors.StorageError) -> None:
            if term.ended.is_set():
                raise DeposedError(term.why)
            self._last_error = f": {problem}"
            await context.clock.sleep(max(context.rng.uniform(0.03, 0.12), context.timings.write_gap / 4))

        await points.reach(points.Point.BEFORE_LEASE)
        version = await lease.write(
            context.store, context.key, record, seen=self._version, timeout=context.timeout, retry=retry
        )
        await points.reach(points.Point.AFTER_LEASE)
        self.lease, self._version, self._sent, self._pending, self._last_error = record, version, sent, None, ""
        term.rebase(offsets)
        self._send_heartbeats()
        self._refresh()

    async def send_heartbeats(self) -> None:
        while True:
            self._send_heartbeats()
            self._refresh()
            self._end_if_long_frozen()
            await self._context.clock.sleep(self._context.timings.heartbeat)

    def _send_heartbeats(self) -> None:
        now, timings, configured = self._context.clock.monotonic(), self._context.adapted(), self._context.timings
        self._beat_number += 1
        self._beats[self._beat_number] = rules.Answer(now, timings.promise, timings.crash_wait)
        self._beats.pop(self._beat_number - MAX_HEARTBEATS_KEPT, None)
        for incarnation, linked in self._links.items():
            linked.link.send(
                peers.Heartbeat(
                    epoch=self.term.epoch,
                    sequence=self._offer(incarnation, now),
                    version=self._version,
                    tail=self.tail,
                    number=self._beat_number,
                    member=incarnation in self._offered_to(self.lease),
                    at=round(self._context.clock.steady(), 3),
                    promise=timings.promise if timings.promise != configured.promise else 0.0,
                    crash_wait=timings.crash_wait if timings.crash_wait != configured.crash_wait else 0.0,
                )
            )

    def _offer(self, incarnation: str, now: float) -> int:
        """The newest record that a standby may claim when its promise has run out, confirmed or being written. Not one
        that was written because this standby had not answered lately: it is worth no more than the last answer."""
        if rules.is_fresh(self._context.adapted(), self._answered.get(incarnation), now):
            for record in (self.lease, *(self._pending or ())[:1]):
                if any(m.incarnation == incarnation for m in record.members):
                    self._offered[incarnation] = record.sequence
        return self._offered.get(incarnation, 0)

    def _offered_to(self, record: Lease) -> set[str]:
        """The members that may claim this record at once."""
        members = (member.incarnation for member in record.members)
        return {name for name in members if self._offered.get(name, 0) >= record.sequence}

    def _end_if_long_frozen(self) -> None:
        """Another leader would count the agents that stay connected here as unresponsive, so they are released in time."""
        self._frozen_beats = 0 if self.term.leading() else self._frozen_beats + 1
        has_standby = bool(self._links or self.lease.members)
        most = rules.frozen_limit(self._context.timings, self._context.latency(), has_standby=has_standby)
        if self._frozen_beats * self._context.timings.heartbeat > most:
            self.term.end(f"the lease could not be renewed for {most:.0f} s{self._last_error}")

    async def serve(self, link: peers.Link, join: peers.Join) -> None:
        """A standby's link, until it ends. Raises LinkClosedError and BadMessageError."""
        if join.server != link.server or join.fingerprint != link.fingerprint:
            raise peers.BadMessageError("a peer claims to be another server than its certificate names")
        name = join.incarnation
        holder = Holder(server=join.server, incarnation=name, addresses=join.addresses, fingerprint=join.fingerprint)
        linked = self._links[name] = _LinkedStandby(holder, link)
        log.info("standby joined", extra={"standby": join.server})
        try:
            while not self.term.ended.is_set():
                self._on_message(name, await link.receive())
        finally:
            if self._links.get(name) is linked:
                del self._links[name]

    def _on_message(self, name: str, message: peers.Message) -> None:
        match message:
            case peers.Promise() if message.epoch == self.term.epoch:
                beat, before = self._beats.get(message.number), self._answered.get(name)
                if beat is None or (before is not None and beat.sent < before.sent):
                    return
                self._answered[name] = beat
                self._standby_seen = self._context.clock.monotonic()
                if all(m.incarnation != name for m in self.lease.members):
                    self._renew_now.set()  # it answers: the lease shall name it
                self._refresh()
            case peers.Refusal() if message.epoch > self.term.epoch:
                self._renew_now.set()  # the next write will show who is right
            case _:
                pass

    def standbys(self) -> dict[str, float]:
        """How many seconds ago each linked standby answered a heartbeat; those that never did are left out."""
        now = self._context.clock.monotonic()
        answers = ((linked.holder.server, self._answered.get(name)) for name, linked in self._links.items())
        return {server: now - answer.sent for server, answer in answers if answer is not None}

    async def release(self) -> None:
        """Release the lease, so that a standby need not wait. `renew` must have ended."""
        await points.reach(points.Point.BEFORE_RELEASE)
        try:
            async with asyncio.timeout(max(RELEASE_SECONDS, 2 * self._context.timeout())):
                version = await self._write_free()
        except (errors.StorageError, lease.BadLeaseError, TimeoutError) as problem:
            log.warning(
                "failed to release the lease: a standby has to wait until it ends", extra={"error": str(problem)}
            )
            return
        for linked in self._links.values():
            linked.link.send(peers.Released(self.term.epoch, version))
        await self._context.clock.sleep(0.02)  # send this before the links close

    async def _write_free(self) -> Version:
        context = self._context
        if self._pending is not None:
            found = await context.read()
            if found is None or found.lease.op not in self._own_ops():
                raise errors.ConflictError("another server holds the lease")
            self.lease, self._version = found.lease, found.version
        record = replace(self._compose(self.term.epoch, self.lease.sequence + 1, ()), free=True)

        async def retry(problem: errors.StorageError) -> None:
            await context.clock.sleep(max(context.rng.uniform(0.03, 0.1), context.timings.write_gap / 4))

        return await lease.write(
            context.store, context.key, record, seen=self._version, timeout=context.timeout, retry=retry
        )

    def close(self) -> None:
        self._time.after_term(self._version)
        for linked in list(self._links.values()):
            linked.link.close()

    def _refresh(self) -> None:
        """Until when work may start: by the confirmed record, and by the one that may already have replaced it."""
        until = self._until(self.lease, self._sent)
        if self._pending is not None:
            until = min(until, self._until(*self._pending))
        self.term.confirm(until, length=self.lease.promise if self.lease.members else self.lease.length)

    def _until(self, record: Lease, sent: float) -> float:
        return rules.valid_until(self._members_of(record), sent=sent, length=record.length, promise=record.promise)

    def _members_of(self, record: Lease) -> rules.Members:
        return rules.Members([m.incarnation for m in record.members], self._answered, self._offered_to(record))

    def _members(self, now: float) -> tuple[Holder, ...]:
        """Those that answer or did so not long ago: a member is not dropped for one lost answer."""
        timeout = self._context.timings.member_silence

        def answered(incarnation: str, otherwise: float) -> float:
            answer = self._answered.get(incarnation)
            return otherwise if answer is None else answer.sent

        kept = {m.incarnation: m for m in self.lease.members if now - answered(m.incarnation, self._sent) < timeout}
        for incarnation, linked in self._links.items():
            # A link may stay open for long after its last answer.
            if now - answered(incarnation, NEVER) < timeout:
                # A server that restarted replaces its former incarnation.
                kept = {i: m for i, m in kept.items() if m.server != linked.holder.server}
                kept[incarnation] = linked.holder
        return tuple(kept[i] for i in sorted(kept))

    def _compose(self, epoch: int, sequence: int, members: tuple[Holder, ...]) -> Lease:
        context, timings = self._context, self._context.adapted()
        near = self._is_standby_near(context.clock.monotonic())
        return Lease(
            epoch=epoch,
            sequence=sequence,
            op=f"{context.rng.bits(96):024x}",
            holder=context.me,
            free=False,
            length=rules.outsider_length(timings, members=len(members), standby_near=near),
            promise=timings.promise,
            crash_wait=timings.crash_wait,
            members=members,
            tail=self.tail,
            at=round(context.clock.steady(), 3),
        )

    def _is_standby_near(self, now: float) -> bool:
        return now - self._standby_seen < self._context.timings.standby_memory

    def _own_ops(self) -> set[str]:
        return {self.lease.op} | ({self._pending[0].op} if self._pending is not None else set())

    async def _is_still_ours(self) -> bool:
        while not self.term.ended.is_set():
            try:
                found = await self._context.read()
            except (errors.StorageError, lease.BadLeaseError, TimeoutError):
                await self._context.clock.sleep(self._context.rng.uniform(0.05, 0.2))
                continue
            return found is not None and (found.lease.op in self._own_ops() or found.lease.holder == self._context.me)
        return False
