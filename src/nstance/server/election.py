"""Running for, holding and giving up the shard's lease.

The rules are in `core.election`; this is the order in which they are applied. A standby keeps a link to the holder and
promises to keep still while it hears from it; a holder renews in storage rarely while all members promise, and often as
soon as one does not. The traps: a renewal in flight may already stand in storage, so the holder counts by the stricter of
the two records; a promise belongs to one epoch; and only one task writes the lease.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from nstance import points
from nstance.clock import Chance, Clock
from nstance.core import election as rules
from nstance.objects import errors, lease, settle
from nstance.objects.journal import Deposed
from nstance.objects.lease import Holder, Lease, Seen
from nstance.objects.port import Key, ObjectStore, Version
from nstance.server import peers
from nstance.server.term import Term

log = logging.getLogger(__name__)

WRITE_TIMEOUT = 0.7
WRITE_TIMEOUT_MOST = 5.0
CLAIM_ATTEMPTS = 4
RELEASE_SECONDS = 2.0
ABSTAIN_AFTER_RELEASE = 3.0


@dataclass(slots=True)
class _Held:
    """The holder's knowledge of its lease."""

    lease: Lease
    version: Version
    sent: float  # when the confirmed record was sent
    pending: tuple[Lease, float] | None = None  # a record that may or may not stand in storage, and when it was sent


@dataclass(slots=True)
class _Member:
    holder: Holder
    link: peers.Link
    heard: float


class Elector:
    def __init__(
        self,
        *,
        store: ObjectStore,
        key: Key,
        me: Holder,
        timings: rules.Timings,
        clock: Clock,
        chance: Chance,
        dialer: peers.Dialer,
        lead: Callable[[Term], Awaitable[None]],
        tail: Callable[[], int],
        floor: Callable[[], Awaitable[int]],
        heard_tail: Callable[[int], None] = lambda tail: None,
    ) -> None:
        """`lead` runs while a term lasts; it returns after `term.closing`. `tail`: the journal's length as known here.
        `floor`: the highest epoch in the journal, 0 if there is no journal. `heard_tail`: a heartbeat named this tail."""
        self.me = me
        self.term: Term | None = None
        self._store = store
        self._key = key
        self._timings = timings
        self._clock = clock
        self._chance = chance
        self._dialer = dialer
        self._lead = lead
        self._tail = tail
        self._floor = floor
        self._heard_tail = heard_tail
        self._stopping = False
        self._kick = asyncio.Event()
        # As a standby:
        self._seen: Seen | None = None
        self._seen_at = 0.0
        self._max_epoch = 0
        self._promise_until = float("-inf")
        self._heartbeat: peers.Heartbeat | None = None  # the last one promised upon
        self._released: peers.Released | None = None
        self._holder_changed = asyncio.Event()
        self._hold_off = float("-inf")
        self._claiming = False
        self._flaps = 0
        # As the holder:
        self._held: _Held | None = None
        self._links: dict[str, _Member] = {}
        self._answered: dict[str, float] = {}
        self._beats: dict[int, float] = {}
        self._beat_number = 0
        self._renew_now = asyncio.Event()
        self._standby_seen = float("-inf")
        self._latency = 0.0

    # ---- what others ask

    @property
    def held(self) -> Lease | None:
        """The lease while this server holds it, frozen or not."""
        return self._held.lease if self._held is not None and self.term is not None else None

    @property
    def seen(self) -> Lease | None:
        """The newest lease this server knows of."""
        return self.held or (self._seen.lease if self._seen is not None else None)

    def stop(self) -> None:
        """Begin an orderly stop: `run` returns when the lease is free or was never held."""
        self._stopping = True
        if self.term is not None:
            self.term.closing.set()
        self._kick.set()

    async def run(self) -> None:
        dialing = asyncio.create_task(self._keep_link())
        try:
            while True:
                term = await self._campaign()
                if term is None:
                    return
                await self._reign(term)
        finally:
            dialing.cancel()
            await asyncio.gather(dialing, return_exceptions=True)

    # ---- standby

    async def _campaign(self) -> Term | None:
        while not self._stopping:
            now = self._clock.monotonic()
            target, wait = await self._target(now)
            if target is None:
                await self._nap(wait)
                continue
            if self._clock.monotonic() < self._promise_until:
                continue  # a heartbeat came while storage was asked
            epoch, version, alone = target
            # From here until the outcome is known, no heartbeat is answered: a promise would let the holder go on while
            # this claim takes its lease.
            self._claiming = True
            try:
                return await self._claim(epoch, version, alone=alone)
            except settle.Overtaken:
                self._claiming = False
                self._seen = None
                await self._nap(self._chance.uniform(0.0, self._timings.poll / 2))
            except errors.StorageError as problem:
                self._claiming = False
                log.debug("could not claim the lease", extra={"error": str(problem)})
                await self._nap(self._chance.uniform(0.05, 0.2))
        return None

    async def _target(self, now: float) -> tuple[tuple[int, Version | None, bool] | None, float]:
        """The epoch and version to claim on, or how long to wait before looking again."""
        if now < self._hold_off:
            return None, self._hold_off - now
        if self._released is not None:
            released, self._released = self._released, None
            if released.epoch >= self._max_epoch:
                return (released.epoch + 1, Version(released.version), False), 0.0
        if now < self._promise_until:
            return None, self._promise_until - now
        if self._heartbeat is not None:
            beat, self._heartbeat = self._heartbeat, None
            if beat.member and beat.epoch >= self._max_epoch:
                return (beat.epoch + 1, Version(beat.version), False), 0.0
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_MOST):
                found = await lease.read(self._store, self._key)
        except (errors.StorageError, TimeoutError) as problem:
            log.debug("could not read the lease", extra={"error": str(problem)})
            return None, self._chance.uniform(0.1, 0.4)
        now = self._clock.monotonic()
        if found is None:
            return await self._missing(now)
        self._notice(found, now)
        current = found.lease
        if current.free:
            return (current.epoch + 1, found.version, current.holder.server == self.me.server), 0.0
        member = any(m.incarnation == self.me.incarnation for m in current.members)
        wait = rules.patience(length=current.length, promise=current.promise, member=member)
        left = self._seen_at + wait - now
        if left > 0:
            return None, min(left, max(self._timings.poll, wait / 8))
        return (current.epoch + 1, found.version, current.holder.server == self.me.server), 0.0

    def _notice(self, found: Seen, now: float) -> None:
        changed = self._seen is None or self._seen.version != found.version
        holder_changed = self._seen is None or self._seen.lease.holder != found.lease.holder
        if changed:
            self._seen, self._seen_at = found, now
        self._max_epoch = max(self._max_epoch, found.lease.epoch)
        if holder_changed:
            self._holder_changed.set()

    async def _missing(self, now: float) -> tuple[tuple[int, Version | None, bool] | None, float]:
        """No lease. Normal for a new shard; otherwise somebody removed it, and its holder may still act."""
        try:
            floor = max(await self._floor(), self._max_epoch)
        except (errors.StorageError, TimeoutError) as problem:
            log.debug("could not look at the journal", extra={"error": str(problem)})
            return None, self._chance.uniform(0.2, 0.6)
        if floor == 0:
            return (1, None, True), 0.0
        if await self._exists():
            return None, 0.0  # somebody made it, and wrote to the journal, between the two looks
        if self._seen is not None or self._seen_at == 0.0:
            log.error(
                "the lease object is missing although the shard has a journal: it was removed by hand or by a rule"
            )
            self._seen, self._seen_at = None, now
        wait = rules.patience(length=self._timings.length_alone, promise=self._timings.promise, member=False)
        if now - self._seen_at < wait:
            return None, min(self._timings.poll * 4, wait)
        return (floor + 1, None, False), 0.0

    async def _exists(self) -> bool:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_MOST):
                return await lease.read(self._store, self._key) is not None
        except (errors.StorageError, TimeoutError):
            return True

    async def _claim(self, epoch: int, version: Version | None, *, alone: bool) -> Term:
        now = self._clock.monotonic()
        self._standby_seen = float("-inf") if alone else now
        record = self._compose(epoch, sequence=1, members=())
        attempts = 0

        async def retry(problem: errors.StorageError) -> None:
            nonlocal attempts
            attempts += 1
            if attempts >= CLAIM_ATTEMPTS:
                raise problem
            await self._clock.sleep(self._chance.uniform(0.02, 0.1))

        await points.reach(points.Point.BEFORE_LEASE)
        sent = self._clock.monotonic()
        written = await lease.write(
            self._store, self._key, record, seen=version, timeout=self._write_timeout(), retry=retry
        )
        await points.reach(points.Point.AFTER_LEASE)
        self._held = _Held(record, written, sent)
        self._max_epoch = max(self._max_epoch, epoch)
        self._links.clear()
        self._answered.clear()
        self._heartbeat = self._released = None
        term = Term(epoch, self._clock, reread=self._still_ours)
        self._refresh(term)
        return term

    async def _keep_link(self) -> None:
        """While standing by, hold a link to whoever the lease names."""
        while True:
            holder = self._seen.lease.holder if self._seen is not None and not self._seen.lease.free else None
            if (
                holder is None
                or self.term is not None
                or holder.incarnation == self.me.incarnation
                or not holder.addresses
            ):
                self._holder_changed.clear()
                await self._holder_changed.wait()
                continue
            try:
                link = await self._dialer.dial(holder.addresses, holder.fingerprint)
            except peers.LinkClosed as problem:
                log.debug("no link to the leader", extra={"leader": holder.server, "error": str(problem)})
                await self._clock.sleep(self._chance.uniform(0.2, 1.0))
                continue
            try:
                link.send(peers.Join(self.me.server, self.me.incarnation, self.me.addresses, self.me.fingerprint))
                while self.term is None:
                    self._hear(await link.receive(), link, holder)
            except (peers.LinkClosed, peers.BadMessage) as problem:
                log.debug("the link to the leader ended", extra={"leader": holder.server, "error": str(problem)})
            finally:
                link.close()
            await self._clock.sleep(self._chance.uniform(0.05, 0.3))

    def _hear(self, message: peers.Message, link: peers.Link, holder: Holder) -> None:
        match message:
            case peers.Heartbeat():
                if self._claiming:
                    return
                if message.epoch < self._max_epoch or link.fingerprint != holder.fingerprint:
                    link.send(peers.Refusal(self._max_epoch))
                    return
                self._max_epoch = message.epoch
                self._promise_until = max(
                    self._promise_until,
                    rules.promise_until(received=self._clock.monotonic(), promise=self._timings.promise),
                )
                self._heartbeat = message
                self._heard_tail(message.tail)
                link.send(peers.Promise(message.epoch, message.number))
            case peers.Released():
                if message.epoch >= self._max_epoch and link.fingerprint == holder.fingerprint:
                    self._released = message
                    self._promise_until = float("-inf")
                    self._kick.set()
            case _:
                raise peers.BadMessage(f"a leader does not say {type(message).__name__}")

    # ---- holder

    async def _reign(self, term: Term) -> None:
        self.term = term
        began = self._clock.monotonic()
        log.info("this server leads", extra={"epoch": term.epoch})
        leading = asyncio.ensure_future(self._lead(term))
        beating = asyncio.create_task(self._beat(term))
        renewing = asyncio.create_task(self._renew(term))
        ended = asyncio.create_task(term.ended.wait())
        try:
            if self._stopping:
                term.closing.set()
            await asyncio.wait({leading, renewing, beating, ended}, return_when=asyncio.FIRST_COMPLETED)
            problem = _outcome(leading) or _outcome(renewing) or _outcome(beating)
            lost = term.ended.is_set() or isinstance(problem, Deposed | settle.Overtaken)
            if problem is not None and not lost:
                log.error("leading failed", exc_info=problem)
            if lost:
                term.end(str(problem) if problem is not None else term.why)
        finally:
            for task in (leading, beating, renewing, ended):
                task.cancel()
            await asyncio.gather(leading, beating, renewing, ended, return_exceptions=True)
        orderly = not lost and problem is None
        if not lost:
            await self._release(term)
        term.end("this server stopped leading")
        for member in self._links.values():
            member.link.close()
        self._links.clear()
        self._held = None
        self.term = None
        self._claiming = False
        self._seen = None
        now = self._clock.monotonic()
        self._promise_until = float("-inf")
        short = now - began < self._timings.flap_short
        self._flaps = self._flaps + 1 if short and not orderly else 0
        wait = rules.flap_wait(self._timings, self._flaps)
        self._hold_off = now + max(wait, 0.0 if lost else ABSTAIN_AFTER_RELEASE)
        log.info("this server no longer leads", extra={"epoch": term.epoch, "reason": term.why})

    async def _renew(self, term: Term) -> None:
        """The only task that writes the lease while the term lasts."""
        held = self._held
        assert held is not None
        while True:
            now = self._clock.monotonic()
            due = held.sent + rules.renew_after(
                self._timings,
                members=[m.incarnation for m in held.lease.members],
                answered=self._answered,
                now=now,
                standby_near=self._standby_near(now),
            )
            if now < due and not self._renew_now.is_set():
                await self._wait_renewal(min(due - now, self._timings.heartbeat))
                continue
            self._renew_now.clear()
            await self._write(term, held, self._compose(term.epoch, held.lease.sequence + 1, self._members(now)))

    async def _write(self, term: Term, held: _Held, record: Lease) -> None:
        sent, offsets = self._clock.monotonic(), term.offsets()
        held.pending = (record, sent)
        self._refresh(term)

        async def retry(problem: errors.StorageError) -> None:
            if term.ended.is_set():
                raise Deposed(term.why)
            await self._clock.sleep(self._chance.uniform(0.03, 0.12))

        await points.reach(points.Point.BEFORE_LEASE)
        version = await lease.write(
            self._store, self._key, record, seen=held.version, timeout=self._write_timeout(), retry=retry
        )
        await points.reach(points.Point.AFTER_LEASE)
        self._latency = max(self._clock.monotonic() - sent, self._latency * 0.8)
        held.lease, held.version, held.sent, held.pending = record, version, sent, None
        term.rebase(offsets)
        self._refresh(term)

    async def _beat(self, term: Term) -> None:
        while True:
            held = self._held
            assert held is not None
            now = self._clock.monotonic()
            self._beat_number += 1
            self._beats[self._beat_number] = now
            self._beats.pop(self._beat_number - 50, None)
            members = {m.incarnation for m in held.lease.members}
            for incarnation, member in self._links.items():
                member.link.send(
                    peers.Heartbeat(
                        epoch=term.epoch,
                        sequence=held.lease.sequence,
                        version=held.version,
                        tail=self._tail(),
                        number=self._beat_number,
                        member=incarnation in members,
                    )
                )
            self._refresh(term)
            await self._clock.sleep(self._timings.heartbeat)

    async def accept(self, link: peers.Link) -> None:
        """A standby's link, until it ends. Called by the listener for each peer connection."""
        try:
            join = await link.receive()
            term = self.term
            if not isinstance(join, peers.Join) or term is None or not term.leading():
                return
            if join.server != link.server or join.fingerprint != link.fingerprint:
                raise peers.BadMessage("a peer claims to be another server than its certificate says")
            holder = Holder(
                server=join.server,
                incarnation=join.incarnation,
                addresses=join.addresses,
                fingerprint=join.fingerprint,
            )
            member = _Member(holder, link, self._clock.monotonic())
            self._links[join.incarnation] = member
            log.info("a standby joined", extra={"standby": join.server})
            try:
                while self.term is term:
                    self._answer(term, member, await link.receive())
            finally:
                if self._links.get(join.incarnation) is member:
                    del self._links[join.incarnation]
        except (peers.LinkClosed, peers.BadMessage) as problem:
            log.debug("a standby's link ended", extra={"error": str(problem)})
        finally:
            link.close()

    def _answer(self, term: Term, member: _Member, message: peers.Message) -> None:
        match message:
            case peers.Promise() if message.epoch == term.epoch:
                sent = self._beats.get(message.number)
                if sent is None:
                    return
                name = member.holder.incarnation
                self._answered[name] = max(sent, self._answered.get(name, sent))
                member.heard = self._standby_seen = self._clock.monotonic()
                if self._held is not None and all(m.incarnation != name for m in self._held.lease.members):
                    self._renew_now.set()  # it keeps its promises: let the lease name it
                self._refresh(term)
            case peers.Refusal() if message.epoch > term.epoch:
                self._renew_now.set()  # the next write will show who is right
            case _:
                pass

    async def _release(self, term: Term) -> None:
        """Give the lease back, so that a standby need not wait."""
        held = self._held
        assert held is not None
        await points.reach(points.Point.BEFORE_RELEASE)
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                if held.pending is not None:
                    found = await lease.read(self._store, self._key)
                    if found is None or found.lease.op not in (held.lease.op, held.pending[0].op):
                        return
                    held.lease, held.version = found.lease, found.version
                record = replace(self._compose(term.epoch, held.lease.sequence + 1, ()), free=True)

                async def retry(problem: errors.StorageError) -> None:
                    await self._clock.sleep(self._chance.uniform(0.03, 0.1))

                version = await lease.write(
                    self._store, self._key, record, seen=held.version, timeout=WRITE_TIMEOUT, retry=retry
                )
        except (errors.StorageError, TimeoutError) as problem:
            log.warning(
                "the lease could not be released, a standby has to wait for its end", extra={"error": str(problem)}
            )
            return
        for member in self._links.values():
            member.link.send(peers.Released(term.epoch, version))
        await self._clock.sleep(0.02)  # let the word out before the links close

    def _refresh(self, term: Term) -> None:
        """Until when work may start: by the record confirmed, and by the one that may already stand in its place."""
        held = self._held
        if held is None:
            return
        until = self._until(held.lease, held.sent)
        length = held.lease.promise if held.lease.members else held.lease.length
        if held.pending is not None:
            until = min(until, self._until(*held.pending))
        term.confirm(until, length=length)

    def _until(self, record: Lease, sent: float) -> float:
        return rules.valid_until(
            sent=sent,
            length=record.length,
            promise=record.promise,
            members=[m.incarnation for m in record.members],
            answered=self._answered,
        )

    def _members(self, now: float) -> tuple[Holder, ...]:
        """Those that answer, and those that did not long ago: a member is not dropped for a hiccup."""
        held = self._held
        assert held is not None
        kept = {
            m.incarnation: m
            for m in held.lease.members
            if now - self._answered.get(m.incarnation, held.sent) < self._timings.member_silence
        }
        for incarnation, member in self._links.items():
            if incarnation in self._answered:
                # A server that restarted takes the place of its former self.
                kept = {i: m for i, m in kept.items() if m.server != member.holder.server}
                kept[incarnation] = member.holder
        return tuple(kept[i] for i in sorted(kept))

    def _compose(self, epoch: int, sequence: int, members: tuple[Holder, ...]) -> Lease:
        now = self._clock.monotonic()
        near = self._standby_near(now)
        length = rules.outsider_length(self._timings, members=len(members), standby_near=near)
        # A slow store gets a longer lease instead of a leader that freezes with every renewal.
        length = min(self._timings.length_alone, max(length, self._timings.renew_standby + 2.5 * self._latency))
        return Lease(
            epoch=epoch,
            sequence=sequence,
            op=f"{self._chance.bits(96):024x}",
            holder=self.me,
            free=False,
            length=length,
            promise=self._timings.promise,
            members=members,
            tail=self._tail(),
            at=round(self._clock.wall(), 3),
        )

    def _standby_near(self, now: float) -> bool:
        return now - self._standby_seen < self._timings.standby_memory

    async def _still_ours(self) -> bool:
        held = self._held
        if held is None:
            return False
        while True:
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_MOST):
                    found = await lease.read(self._store, self._key)
                break
            except (errors.StorageError, TimeoutError):
                await self._clock.sleep(self._chance.uniform(0.05, 0.2))
        ours = {held.lease.op} | ({held.pending[0].op} if held.pending is not None else set())
        return found is not None and (found.lease.op in ours or found.lease.holder == self.me)

    def _write_timeout(self) -> float:
        return min(WRITE_TIMEOUT_MOST, max(WRITE_TIMEOUT, 3 * self._latency))

    async def _wait_renewal(self, seconds: float) -> None:
        await _wait(self._clock, self._renew_now, seconds)

    async def _nap(self, seconds: float) -> None:
        """Sleep that news cut short."""
        if seconds > 0:
            await _wait(self._clock, self._kick, seconds)
        self._kick.clear()


async def _wait(clock: Clock, event: asyncio.Event, seconds: float) -> None:
    """Until the event is set or the time has passed, on the clock that was given."""
    waiting = asyncio.ensure_future(event.wait())
    sleeping = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        sleeping.cancel()


def _outcome(task: asyncio.Future[None]) -> BaseException | None:
    if not task.done() or task.cancelled():
        return None
    return task.exception()
