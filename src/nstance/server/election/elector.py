"""Claims, holds and releases the shard's lease, by the rules of `core.election`.

A server is a standby (`Standby`) or leads a term (`HeldLease`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from nstance.core import election as rules
from nstance.core.election import Attempt, Claim
from nstance.objects import errors, settle
from nstance.objects.journal import DeposedError
from nstance.objects.lease import BadLeaseError, Lease
from nstance.objects.slots import DamagedError
from nstance.server.election import peers
from nstance.server.election.context import ElectionContext
from nstance.server.election.lease_holder import HeldLease
from nstance.server.election.shard_time import ShardTime
from nstance.server.election.standby import CLAIM, JOURNAL, Standby
from nstance.server.election.term import Term
from nstance.tasks import background

log = logging.getLogger(__name__)

Lead = Callable[[Term], Awaitable[None]]


class Elector:
    def __init__(
        self,
        context: ElectionContext,
        *,
        dialer: peers.Dialer,
        tail: Callable[[], int],
        floor: Callable[[], Awaitable[int]],
        on_tail: Callable[[int], None] = lambda tail: None,
    ) -> None:
        """`tail`: the journal's length as known here. `floor`: the highest epoch in the journal, 0 if there is none.
        `on_tail`: a heartbeat named the journal's length."""
        self.term: Term | None = None
        self.damage = ""  # of the journal, if it ended this server's last term
        self.lease_damage = ""  # why the lease object cannot be read
        self._context = context
        self._dialer = dialer
        self._tail = tail
        self._floor = floor
        self._time = ShardTime(
            context.store, context.key, clock=context.clock, anchor=context.anchor, timeout=context.timeout
        )
        self._standby = Standby(context, self._time, floor=floor, on_tail=on_tail)
        self._held: HeldLease | None = None
        self._link: peers.Link | None = None
        self._stopping = False
        self._wake = asyncio.Event()  # ends a wait of the campaign
        self._lease_checked = asyncio.Event()
        self._flaps = 0

    @property
    def sees_leader(self) -> bool:
        """Whether another server leads and sent a heartbeat a moment ago."""
        return self.term is None and self._standby.has_promised()

    @property
    def storage_problem(self) -> str:
        """Why this server cannot claim the lease now, if storage is the reason."""
        return next((f"failed to {action}: {why}" for action, why in self._standby.problems.items()), "")

    @property
    def held(self) -> Lease | None:
        """The lease while this server holds it, even if it may not act now."""
        return self._held.lease if self._held is not None and self.term is not None else None

    def standbys(self) -> dict[str, float]:
        """How many seconds ago each standby answered this leader; empty while it does not lead."""
        return self._held.standbys() if self._held is not None and self.term is not None else {}

    def set_tail(self, tail: int) -> None:
        """The journal has this length now: the next heartbeat names it."""
        if self._held is not None:
            self._held.tail = tail

    def stop(self) -> None:
        """Begin an orderly stop: `run` returns when the lease is free or was never held."""
        self._stopping = True
        if self.term is not None:
            self.term.closing.set()
        self._wake.set()

    @property
    def has_term(self) -> bool:
        """Whether this server holds the lease, even if it may not act now."""
        return self.term is not None

    async def run(self, lead: Lead) -> None:
        """Until stopped. `lead` runs while a term lasts; it returns after `term.closing`."""
        async with background.running([self._keep_link()]):
            while (held := await self._campaign()) is not None:
                await self._lead_term(held, lead)

    async def accept(self, link: peers.Link) -> None:
        """A peer's link, until it ends. Called by the listener for each peer connection."""
        try:
            join = await link.receive()
            held, term = self._held, self.term
            if isinstance(join, peers.Join) and held is not None and term is not None and term.leading():
                await held.serve(link, join)
        except (peers.LinkClosedError, peers.BadMessageError) as problem:
            log.debug("standby disconnected", extra={"error": str(problem)})
        finally:
            link.close()

    async def _campaign(self) -> HeldLease | None:
        """Returns when a claim succeeded; None if stopped before."""
        standby, rng = self._standby, self._context.rng
        renewed: Claim | None = None
        while not self._stopping:
            target, wait = (renewed, 0.0) if renewed is not None else await self._find_target()
            renewed = None
            self._lease_checked.set()
            if target is None:
                await self._sleep(wait)
                continue
            if standby.has_promised():
                continue  # a heartbeat arrived during the read
            standby.claiming = True
            # The lease carries the longest journal that anybody has seen: a slot that is missing must be noticed.
            held = HeldLease(self._context, self._time, tail=max(self._tail(), standby.tail))
            try:
                term = await held.claim(target)
                log.info("leadership acquired", extra={"epoch": term.epoch, "reason": target.reason})
                standby.on_storage(CLAIM, None)
                return held
            except settle.OvertakenError as overtaken:
                standby.on_storage(CLAIM, None)
                with contextlib.suppress(BadLeaseError):  # the next read reports it
                    renewed = standby.on_overtaken(overtaken.found)
                wait = 0.0 if renewed is not None else rng.uniform(0.0, self._context.timings.poll / 2)
            except errors.StorageError as problem:
                standby.on_storage(CLAIM, problem)
                wait = rng.uniform(0.05, 0.2)
            standby.claiming = False
            await self._sleep(wait)
        return None

    async def _find_target(self) -> Attempt:
        """What to claim, or how long to wait. Damaged storage is retried, because a person will repair it; a claim would only
        make the epoch grow."""
        try:
            if self.damage:  # it counts until somebody leads: a journal that lacks its last slots reads well
                await self._floor()
                self._standby.on_storage(JOURNAL, None)
            found = await self._standby.target()
            self.lease_damage = ""
            return found
        except DamagedError as damage:
            self.damage = str(damage)
        except BadLeaseError as damage:
            if self.lease_damage != str(damage):
                log.error("failed to read the lease: nobody can lead", extra={"error": str(damage)})
            self.lease_damage = str(damage)
        except (errors.StorageError, TimeoutError) as problem:
            self._standby.on_storage(JOURNAL, problem)
        return None, self._context.rng.uniform(0.5, 1.0) * self._context.waits.abstain

    async def _keep_link(self) -> None:
        """While standing by, keep a link to the server that the lease names."""
        clock, rng, me = self._context.clock, self._context.rng, self._context.me
        while True:
            known = self._standby.leader_lease
            if known is None or self.term is not None:
                self._lease_checked.clear()
                await self._lease_checked.wait()
                continue
            holder, has_received = known.holder, False
            try:
                link = self._link = await self._dialer.dial(holder.addresses, holder.fingerprint)
                link.send(peers.Join(me.server, me.incarnation, me.addresses, me.fingerprint))
                while self.term is None:
                    if self._standby.on_message(await link.receive(), link, known):
                        self._wake.set()
                    if not has_received:
                        log.info("standing by", extra={"leader": holder.server, "epoch": known.epoch})
                    has_received = True
            except peers.PeerRefusedError as problem:
                log.debug(
                    "failed to connect to the leader: connection refused",
                    extra={"leader": holder.server, "error": str(problem)},
                )
                self._standby.on_leader_dead()
                self._wake.set()
            except (peers.LinkClosedError, peers.BadMessageError) as problem:
                is_news = has_received and self.term is None
                log.log(
                    logging.INFO if is_news else logging.DEBUG,
                    "connection to the leader lost" if has_received else "failed to connect to the leader",
                    extra={"leader": holder.server, "error": str(problem)},
                )
            finally:
                if self._link is not None:
                    self._link.close()
                    self._link = None
            if not has_received:  # otherwise check at once whether the leader is still there
                await clock.sleep(rng.uniform(0.1, 0.6))

    async def _lead_term(self, held: HeldLease, lead: Lead) -> None:
        clock, term = self._context.clock, held.term
        self.term, self._held = term, held
        if self._link is not None:
            self._link.close()  # to the former leader
        began = clock.monotonic()
        if self._stopping:
            term.closing.set()
        problem = await self._run_term(held, lead)
        self.damage = str(problem) if isinstance(problem, DamagedError) else ""
        lost = term.ended.is_set() or isinstance(problem, DeposedError | settle.OvertakenError)
        if lost:
            term.end(str(problem) if problem is not None else "")
        else:
            _log_failure(problem)
            # The term ends before the lease is free: the server that takes it may act at once.
            term.end("this server stopped leading" if problem is None else f"leading failed: {problem}")
            await held.release()
        held.close()
        self._held = self.term = None
        now = clock.monotonic()
        orderly = not lost and problem is None
        short = now - began < self._context.timings.flap_short
        self._flaps = self._flaps + 1 if short and not orderly else 0
        wait = max(rules.flap_wait(self._context.timings, self._flaps), 0.0 if lost else self._context.waits.abstain)
        self._standby.reset(epoch=term.epoch, hold_off=now + wait)
        log.info("leadership lost", extra={"epoch": term.epoch, "reason": term.why})

    async def _run_term(self, held: HeldLease, lead: Lead) -> BaseException | None:
        """Lead, renew and send heartbeats until one of them ends; returns what it failed with."""
        works = (lead(held.term), held.renew(), held.send_heartbeats(), held.term.ended.wait())
        async with background.running(works) as tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next((p for task in tasks if (p := _outcome(task)) is not None), None)

    async def _sleep(self, seconds: float) -> None:
        """Wait, but not longer than until something happens."""
        if seconds > 0:
            await self._context.wait(self._wake, seconds)
        self._wake.clear()


def _log_failure(problem: BaseException | None) -> None:
    if problem is not None:
        is_bug = not isinstance(problem, errors.StorageError | DamagedError)
        level = logging.WARNING if isinstance(problem, errors.StorageError) else logging.ERROR
        log.log(level, "failed to lead", extra={"error": str(problem)}, exc_info=problem if is_bug else None)


def _outcome(task: "asyncio.Future[Any]") -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None
