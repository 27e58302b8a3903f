"""Leader election among operators, by a Lease, as every controller does it.

Who leads writes the Lease every two seconds. A candidate takes it when it has seen it unchanged, on its own clock, for as
long as the Lease says: the times written in it are another machine's and are for people. A leader that could not write
for ten seconds stops, five before anybody else may start. The traps: the ten seconds count from before the write was sent,
and on a clock that goes on while the machine is suspended; and a release comes after the work has ended, never before.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from nstance.clock import Clock, Rng
from nstance.kube import errors, kinds
from nstance.kube.port import Kube, Object

log = logging.getLogger(__name__)

NAME = "nstance-operator-leader-election"
LENGTH, DEADLINE, RETRY = 15.0, 10.0, 2.0
RELEASE_SECONDS = 5.0
_JITTER = 1.2


class Lost(Exception):
    """Somebody else leads, or soon may. The process has to end."""


def identity(host: str, rng: Rng) -> str:
    """Another one for each process: one that comes back is not the one that led."""
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
        name: str = NAME,
        length: float = LENGTH,
        deadline: float = DEADLINE,
        retry: float = RETRY,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._rng = rng
        self._length, self._deadline, self._retry = length, deadline, retry
        self._lease: Object | None = None  # as last read or written
        self._unchanged_since = 0.0
        self._renewed = 0.0  # of the clock that counts suspension too
        self.leading = False

    @property
    def holder(self) -> str:
        """Who led when the Lease was last looked at; empty if nobody."""
        return str(_spec(self._lease).get("holderIdentity") or "")

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait to lead, then work. Raises Lost after the work was cancelled; releases when the work or the caller ends."""
        await self.acquire()
        keeping = asyncio.ensure_future(self.keep())
        working = asyncio.ensure_future(work())
        try:
            await asyncio.wait({keeping, working}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Cancelled from outside, or one of the two ended: the work ends first, while the Lease is still kept.
            working.cancel()
            await asyncio.wait({keeping, working}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():  # lost: it has until others may start
                await asyncio.wait({working}, timeout=(self._length - self._deadline) / 2)
            keeping.cancel()
            await asyncio.wait({keeping})
            lost = None if keeping.cancelled() else keeping.exception()
            await self.release()
        if lost is not None:
            raise lost
        await working

    async def acquire(self) -> None:
        """Returns when it leads."""
        waiting_for: str | None = None
        while True:
            try:
                async with asyncio.timeout(self._deadline):
                    await self._attempt()
            except (errors.KubeError, TimeoutError) as problem:
                log.warning("the election cannot be held", extra={"lease": self._name, "problem": str(problem)})
            if self.leading:
                log.info("leads", extra={"lease": self._name, "identity": self._identity})
                return
            if self.holder != waiting_for:
                waiting_for = self.holder
                log.info("waits to lead", extra={"lease": self._name, "holder": waiting_for})
            await self._clock.sleep(self._retry * (1.0 + self._rng.uniform(0.0, _JITTER)))

    async def keep(self) -> None:
        """For ever; raises Lost."""
        problem = ""
        while True:
            await self._clock.sleep(min(self._retry, max(0.0, self._left())))
            if self._left() <= 0:
                self.leading = False
                raise Lost(f"the lease {self._name} was not renewed for {self._deadline:g} s: {problem or 'suspended'}")
            try:
                async with asyncio.timeout(self._left()):
                    await self._attempt()
                problem = ""
            except errors.KubeError as failure:
                problem = str(failure)
            except TimeoutError:
                problem = "no answer"
            if self.holder not in ("", self._identity):
                self.leading = False
                raise Lost(f"the lease {self._name} was taken by {self.holder}")

    def _left(self) -> float:
        return self._renewed + self._deadline - self._clock.boot()

    async def release(self) -> None:
        """Whoever waits need not wait any longer. Call it when all work has ended."""
        if not self.leading or self._lease is None:
            return
        self.leading = False
        now = self._moment()
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
            log.warning("the lease was not released", extra={"lease": self._name, "problem": str(problem)})

    async def _attempt(self) -> None:
        """Renew the lease or take it, if it may be taken."""
        if self.leading and self.holder == self._identity:
            try:
                await self._write()
                return
            except (errors.ConflictError, errors.NotFoundError):
                pass  # somebody touched it: look
        try:
            self._observe(await self._kube.get(kinds.LEASE, self._name, namespace=self._namespace))
        except errors.NotFoundError:
            self._lease = None
        if self.holder not in ("", self._identity) and (self.leading or not self._lapsed()):
            return
        await self._write()

    def _observe(self, lease: Object) -> None:
        if self._lease is None or _spec(lease) != _spec(self._lease):
            self._unchanged_since = self._clock.monotonic()
        self._lease = lease

    def _lapsed(self) -> bool:
        length = _spec(self._lease).get("leaseDurationSeconds")
        if not isinstance(length, int) or length <= 0:
            length = self._length
        return self._clock.monotonic() - self._unchanged_since > length

    async def _write(self) -> None:
        began = self._clock.boot()
        old, now = _spec(self._lease), self._moment()
        ours = old.get("holderIdentity") == self._identity
        transitions = old.get("leaseTransitions")
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": round(self._length),
            "acquireTime": (old.get("acquireTime") if ours else None) or now,
            "renewTime": now,
            "leaseTransitions": (transitions if isinstance(transitions, int) else 0) + (0 if ours or not old else 1),
        }
        if self._lease is None:
            body: Object = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": spec}
            written = await self._kube.create(kinds.LEASE, body, namespace=self._namespace)
        else:
            written = await self._kube.replace(kinds.LEASE, {**self._lease, "spec": {**old, **spec}})
        self._observe(written)
        self._renewed = began
        self.leading = True

    def _moment(self) -> str:
        return datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _spec(lease: Object | None) -> dict[str, Any]:
    spec = lease.get("spec") if lease is not None else None
    return spec if isinstance(spec, dict) else {}
