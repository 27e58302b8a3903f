"""Leader election among operators with a Kubernetes Lease, as controllers usually do it.

A candidate acquires the Lease when it has not changed for its duration on the candidate's own clock; the times in it are
from another machine and only for people. A leader that could not write it for a while (`LeaseTimes.deadline`) stops before
another may start. The traps: that time counts from before the write was sent, on a clock that includes suspension; the
Lease is released only after the work has ended; and a request that hangs must leave time for another one, so none may take
until the deadline.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nstance.clock import Clock, Rng
from nstance.kube import errors, kinds
from nstance.kube.port import Kube, Object

log = logging.getLogger(__name__)

LEASE_NAME = "nstance-operator-leader-election"
RELEASE_SECONDS = 5.0
EXPIRED_SECONDS = 0.01  # a candidate attempts so long after the lease has expired
_JITTER = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """In seconds. By default another operator leads within five seconds after a leader was killed."""

    duration: float = 4.0  # whole seconds: after it, another candidate may lead
    deadline: float = 3.0  # a leader that could not renew for so long stops
    renew: float = 0.6  # between two renewals
    retry: float = 0.5  # between two attempts of a candidate

    def __post_init__(self) -> None:
        if not (0 < self.renew < self.deadline < self.duration and self.retry > 0 and self.duration >= 1):
            raise ValueError(
                "expected a lease that lasts longer than its deadline, and a deadline longer than a renewal"
            )

    @property
    def attempt(self) -> float:
        """How long one renewal may take: two fit into the time until the deadline."""
        return (self.deadline - self.renew) / 2


class LeadershipLostError(Exception):
    """Another process leads or soon may. This process has to end."""


def identity(host: str, rng: Rng) -> str:
    """Unique for each process: a restarted process is a new candidate."""
    return f"{host}_{rng.bits(64):016x}"


class Election:
    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        identity: str,
        clock: Clock,
        rng: Rng,
        times: LeaseTimes = LeaseTimes(),  # noqa: B008 - immutable
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._identity = identity
        self._clock = clock
        self._rng = rng
        self._times = times
        self._lease: Object | None = None  # last read or written
        self._unchanged_since = 0.0
        self._renewed = 0.0  # on the clock that includes suspension
        self.leading = False

    @property
    def holder(self) -> str:
        """The holder when the Lease was last read; empty: none."""
        return str(_spec(self._lease).get("holderIdentity") or "")

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Acquires the lease, then works. Raises LeadershipLostError after the work was cancelled."""
        await self.acquire()
        renewing = asyncio.ensure_future(self.renew())
        working = asyncio.ensure_future(work())
        try:
            await asyncio.wait({renewing, working}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Cancelled, or one of the two ended: the work ends first, while the Lease is still held.
            working.cancel()
            await asyncio.wait({renewing, working}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():  # lost: it must end before others may start
                await asyncio.wait({working}, timeout=(self._times.duration - self._times.deadline) / 2)
            renewing.cancel()
            await asyncio.wait({renewing})
            lost = None if renewing.cancelled() else renewing.exception()
            await self.release()
        if lost is not None:
            raise lost
        await working

    async def acquire(self) -> None:
        """Waits until it leads."""
        waiting_for: str | None = None
        while True:
            try:
                async with asyncio.timeout(self._times.deadline):
                    await self._attempt()
            except (errors.KubeError, TimeoutError) as problem:
                log.warning("failed to acquire lease", extra={"lease": LEASE_NAME, "problem": str(problem)})
            if self.leading:
                log.info("leadership acquired", extra={"lease": LEASE_NAME, "identity": self._identity})
                return
            if self.holder != waiting_for:
                waiting_for = self.holder
                log.info("waiting for leadership", extra={"lease": LEASE_NAME, "holder": waiting_for})
            pause = self._times.retry * (1.0 + self._rng.uniform(0.0, _JITTER))
            expires = self._unchanged_since + self._length() - self._clock.monotonic()
            await self._clock.sleep(min(pause, expires + EXPIRED_SECONDS) if expires > 0 else pause)

    async def renew(self) -> None:
        """Renews the lease until it is lost. Raises LeadershipLostError."""
        problem = ""
        while True:
            await self._clock.sleep(min(self._times.renew, max(0.0, self._remaining())))
            if self._remaining() <= 0:
                self.leading = False
                raise LeadershipLostError(
                    f"the lease {LEASE_NAME} was not renewed for {self._times.deadline:g} s: {problem or 'suspended'}"
                )
            try:
                async with asyncio.timeout(min(self._remaining(), self._times.attempt)):
                    await self._attempt()
                problem = ""
            except errors.KubeError as failure:
                problem = str(failure)
            except TimeoutError:
                problem = "no answer"
            if self.holder not in ("", self._identity):
                self.leading = False
                raise LeadershipLostError(f"the lease {LEASE_NAME} was acquired by {self.holder}")

    def _remaining(self) -> float:
        return self._renewed + self._times.deadline - self._clock.boot()

    async def release(self) -> None:
        """Lets another candidate lead at once. Call it when all work has ended."""
        if not self.leading or self._lease is None:
            return
        self.leading = False
        now = self._timestamp()
        spec = {
            **_spec(self._lease),
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "renewTime": now,
            "acquireTime": now,
        }
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._kube.replace(kinds.LEASE, {**self._lease, "spec": spec})
        except (errors.KubeError, TimeoutError) as problem:
            log.warning("failed to release lease", extra={"lease": LEASE_NAME, "problem": str(problem)})

    async def _attempt(self) -> None:
        """Renews the lease, or acquires it if it is free or expired."""
        if self.leading and self.holder == self._identity:
            try:
                await self._write()
                return
            except (errors.ConflictError, errors.NotFoundError):
                pass  # it changed: read it
        try:
            self._observe(await self._kube.get(kinds.LEASE, LEASE_NAME, namespace=self._namespace))
        except errors.NotFoundError:
            self._lease = None
        if self.holder not in ("", self._identity) and (self.leading or not self._is_expired()):
            return
        await self._write()

    def _observe(self, lease: Object) -> None:
        if self._lease is None or _spec(lease) != _spec(self._lease):
            self._unchanged_since = self._clock.monotonic()
        self._lease = lease

    def _is_expired(self) -> bool:
        return self._clock.monotonic() - self._unchanged_since > self._length()

    def _length(self) -> float:
        """How long the Lease lasts that was last read."""
        length = _spec(self._lease).get("leaseDurationSeconds")
        return length if isinstance(length, int) and length > 0 else self._times.duration

    async def _write(self) -> None:
        sent = self._clock.boot()
        old, now = _spec(self._lease), self._timestamp()
        ours = old.get("holderIdentity") == self._identity
        transitions = old.get("leaseTransitions")
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": round(self._times.duration),
            "acquireTime": (old.get("acquireTime") if ours else None) or now,
            "renewTime": now,
            "leaseTransitions": (transitions if isinstance(transitions, int) else 0) + (0 if ours or not old else 1),
        }
        if self._lease is None:
            body: Object = {"metadata": {"name": LEASE_NAME, "namespace": self._namespace}, "spec": spec}
            written = await self._kube.create(kinds.LEASE, body, namespace=self._namespace)
        else:
            written = await self._kube.replace(kinds.LEASE, {**self._lease, "spec": {**old, **spec}})
        self._observe(written)
        self._renewed = sent
        self.leading = True

    def _timestamp(self) -> str:
        return datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _spec(lease: Object | None) -> dict[str, Any]:
    spec = lease.get("spec") if lease is not None else None
    return spec if isinstance(spec, dict) else {}
