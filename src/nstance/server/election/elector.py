"""Running for, holding and giving up the shard's lease: the order in which the rules of `core.election` are applied.

A server is a standby or it reigns; `Standby` and `Holding` know the rest.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nstance.core import election as rules
from nstance.core.claims import Claim
from nstance.objects import errors, settle
from nstance.objects.journal import DeposedError
from nstance.objects.lease import Lease
from nstance.objects.slots import DamagedError
from nstance.server.election import peers
from nstance.server.election.context import ElectionContext
from nstance.server.election.lease_holder import HeldLease
from nstance.server.election.shard_time import ShardTime
from nstance.server.election.standby import Standby
from nstance.server.election.term import Term

log = logging.getLogger(__name__)

ABSTAIN_AFTER_RELEASE = 3.0

Lead = Callable[[Term], Awaitable[None]]


class Elector:
    def __init__(
        self,
        seat: ElectionContext,
        *,
        dialer: peers.Dialer,
        tail: Callable[[], int],
        floor: Callable[[], Awaitable[int]],
        heard_tail: Callable[[int], None] = lambda tail: None,
    ) -> None:
        """`tail`: the journal's length as known here. `floor`: the highest epoch in the journal, 0 if there is none.
        `heard_tail`: a heartbeat named this tail."""
        self.term: Term | None = None
        self.damage = ""  # of the journal, if this server's last term ended with it
        self._seat = seat
        self._dialer = dialer
        self._tail = tail
        self._time = ShardTime(seat.store, seat.key, clock=seat.clock, anchor=seat.anchor, timeout=seat.timeout)
        self._standby = Standby(seat, self._time, floor=floor, heard_tail=heard_tail)
        self._holding: HeldLease | None = None
        self._link: peers.Link | None = None
        self._stopping = False
        self._kick = asyncio.Event()
        self._news = asyncio.Event()
        self._flaps = 0

    @property
    def hears_leader(self) -> bool:
        """Whether another server leads and said so a moment ago."""
        return self.term is None and self._standby.promised()

    @property
    def held(self) -> Lease | None:
        """The lease while this server holds it, frozen or not."""
        return self._holding.lease if self._holding is not None and self.term is not None else None

    @property
    def known(self) -> Lease | None:
        """The newest lease this server knows of."""
        return self.held or self._standby.lease

    def wrote(self, tail: int) -> None:
        """The journal is so long now: standbys are told with the next heartbeat."""
        if self._holding is not None:
            self._holding.tail = tail

    def stop(self) -> None:
        """Begin an orderly stop: `run` returns when the lease is free or was never held."""
        self._stopping = True
        if self.term is not None:
            self.term.closing.set()
        self._kick.set()

    @property
    def has_term(self) -> bool:
        """Whether this server holds the lease, frozen or not."""
        return self.term is not None

    async def run(self, lead: Lead) -> None:
        """Until stopped. `lead` runs while a term lasts; it returns after `term.closing`."""
        linking = asyncio.create_task(self._keep_link())
        try:
            while (holding := await self._campaign()) is not None:
                await self._reign(holding, lead)
        finally:
            linking.cancel()
            await asyncio.gather(linking, return_exceptions=True)

    async def accept(self, link: peers.Link) -> None:
        """A peer's link, until it ends. Called by the listener for each peer connection."""
        try:
            join = await link.receive()
            holding, term = self._holding, self.term
            if isinstance(join, peers.Join) and holding is not None and term is not None and term.leading():
                await holding.serve(link, join)
        except (peers.LinkClosedError, peers.BadMessageError) as problem:
            log.debug("a standby's link ended", extra={"error": str(problem)})
        finally:
            link.close()

    async def _campaign(self) -> HeldLease | None:
        """Until a claim succeeds; None if stopped before."""
        standby, rng = self._standby, self._seat.rng
        renewed: Claim | None = None
        while not self._stopping:
            target, wait = (renewed, 0.0) if renewed is not None else await standby.target()
            renewed = None
            self._news.set()
            if target is None:
                await self._nap(wait)
                continue
            if standby.promised():
                continue  # a heartbeat came while storage was asked
            standby.claiming = True
            # What others have seen of the journal is handed on: a slot that is missing must not be forgotten.
            holding = HeldLease(self._seat, self._time, tail=max(self._tail(), standby.tail))
            try:
                await holding.claim(target)
                return holding
            except settle.OvertakenError as overtaken:
                renewed = standby.overtaken(overtaken.found)
                wait = 0.0 if renewed is not None else rng.uniform(0.0, self._seat.timings.poll / 2)
            except errors.StorageError as problem:
                log.debug("could not claim the lease", extra={"error": str(problem)})
                wait = rng.uniform(0.05, 0.2)
            standby.claiming = False
            await self._nap(wait)
        return None

    async def _keep_link(self) -> None:
        """While standing by, hold a link to the server that the lease names."""
        clock, rng, me = self._seat.clock, self._seat.rng, self._seat.me
        while True:
            known = self._standby.led_by
            if known is None or self.term is not None:
                self._news.clear()
                await self._news.wait()
                continue
            holder, last_seen = known.holder, False
            try:
                link = self._link = await self._dialer.dial(holder.addresses, holder.fingerprint)
                link.send(peers.Join(me.server, me.incarnation, me.addresses, me.fingerprint))
                while self.term is None:
                    if self._standby.hear(await link.receive(), link, known):
                        self._kick.set()
                    last_seen = True
            except peers.PeerRefusedError as problem:
                log.debug("the leader's host refuses a link", extra={"leader": holder.server, "error": str(problem)})
                self._standby.leader_found_dead()
                self._kick.set()
            except (peers.LinkClosedError, peers.BadMessageError) as problem:
                log.debug("no link to the leader", extra={"leader": holder.server, "error": str(problem)})
            finally:
                if self._link is not None:
                    self._link.close()
                    self._link = None
            if not last_seen:  # otherwise ask at once whether the leader is still there
                await clock.sleep(rng.uniform(0.1, 0.6))

    async def _reign(self, holding: HeldLease, lead: Lead) -> None:
        clock, term = self._seat.clock, holding.term
        self.term, self._holding = term, holding
        if self._link is not None:
            self._link.close()  # to the former leader
        began = clock.monotonic()
        log.info("this server leads", extra={"epoch": term.epoch})
        if self._stopping:
            term.closing.set()
        problem = await self._while_it_lasts(holding, lead)
        self.damage = str(problem) if isinstance(problem, DamagedError) else ""
        lost = term.ended.is_set() or isinstance(problem, DeposedError | settle.OvertakenError)
        if lost:
            term.end(str(problem) if problem is not None else "")
        else:
            if isinstance(problem, errors.StorageError):
                log.warning("leading failed", extra={"error": str(problem)})
            elif isinstance(problem, DamagedError):
                log.error("leading failed", extra={"error": str(problem)})
            elif problem is not None:
                log.error("leading failed", exc_info=problem)
            # Over before the lease is free: whoever takes it may act at once.
            term.end("this server stopped leading" if problem is None else f"leading failed: {problem}")
            await holding.release()
        holding.close()
        self._holding = self.term = None
        now = clock.monotonic()
        orderly = not lost and problem is None
        short = now - began < self._seat.timings.flap_short
        self._flaps = self._flaps + 1 if short and not orderly else 0
        wait = max(rules.flap_wait(self._seat.timings, self._flaps), 0.0 if lost else ABSTAIN_AFTER_RELEASE)
        self._standby.begin(epoch=term.epoch, hold_off=now + wait)
        log.info("this server no longer leads", extra={"epoch": term.epoch, "reason": term.why})

    async def _while_it_lasts(self, holding: HeldLease, lead: Lead) -> BaseException | None:
        """Lead, renew and send heartbeats until one of them ends; returns what it failed with."""
        leading = asyncio.ensure_future(lead(holding.term))
        tasks = [
            leading,
            asyncio.ensure_future(holding.renew()),
            asyncio.ensure_future(holding.beat()),
            asyncio.ensure_future(_until(holding.term.ended)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next((p for task in tasks if (p := _outcome(task)) is not None), None)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _nap(self, seconds: float) -> None:
        """Sleep that news cut short."""
        if seconds > 0:
            await self._seat.wait(self._kick, seconds)
        self._kick.clear()


async def _until(event: asyncio.Event) -> None:
    await event.wait()


def _outcome(task: "asyncio.Future[None]") -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None
