"""Every call to the provider: in its term, at the pace that the provider bears, with a deadline, and counted.

A kind of call that is refused for haste slows all of them down. The trap: a call may wait long for its turn, so whoever
may change his mind says so, and is asked again just before it is sent.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nstance.clock import Clock, Rng
from nstance.model.decision import ReasonCode
from nstance.providers import errors
from nstance.server.cloud.rate_limiter import RateLimiter, RequestQueue
from nstance.telemetry.metrics import Metrics

T = TypeVar("T")


class NotSentError(Exception):
    """Nobody wanted the call any more when its turn came. `tried`: it had been made before, and refused for haste."""

    def __init__(self, *, tried: bool) -> None:
        super().__init__("the call was not wanted any more")
        self.tried = tried


def _always() -> bool:
    return True


class ProviderCalls:
    """To one provider during one term. A lane for each kind of call."""

    def __init__(
        self,
        *,
        ready: Callable[[], Awaitable[None]],
        clock: Clock,
        rng: Rng,
        metrics: Metrics,
        timeout: Callable[[], float],
        announce: Callable[[ReasonCode, str], None],
        between_creates: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`ready` waits until the term allows it, and raises Deposed; `timeout`, of one call, is asked each time."""
        self._ready = ready
        self._clock = clock
        self._metrics = metrics
        self._timeout = timeout
        self._announce = announce
        self._pace = RateLimiter(clock, rng, changed=self._pace_changed)
        self.creates = self._pace.lane(at_least=between_creates)
        self.deletes = self._pace.lane()
        self.looks = self._pace.lane()
        self.listings = self._pace.lane()
        self.joins = self._pace.lane()  # of load balancers
        self.leaves = self._pace.lane()
        self.questions = self._pace.lane()  # all the rest: nobody's life depends on them

    async def once(
        self, op: str, lane: RequestQueue, make: Callable[[], Awaitable[T]], *, wanted: Callable[[], bool] = _always
    ) -> T:
        """One attempt in its turn. Raises ProviderError, Throttled among them; NotSent; Deposed."""
        await lane.turn(wanted=wanted)
        return await self._send(op, make, wanted)

    async def patiently(
        self,
        op: str,
        lane: RequestQueue,
        make: Callable[[], Awaitable[T]],
        *,
        place: int | None = None,
        wanted: Callable[[], bool] = _always,
    ) -> T:
        """Throttling is waited out here, in its place of the row; `place`: of a turn that has come already. Raises other
        ProviderErrors; NotSent; Deposed."""
        tried = False
        if place is None:
            place = await lane.turn(wanted=wanted)
        while True:
            try:
                return await self._send(op, make, wanted)
            except errors.ThrottledError:
                tried = True
            except NotSentError:
                raise NotSentError(tried=tried) from None
            await lane.turn(place, wanted=wanted)

    def close(self) -> None:
        self._pace.close()

    async def _send(self, op: str, make: Callable[[], Awaitable[T]], wanted: Callable[[], bool]) -> T:
        await self._ready()
        if not wanted():
            raise NotSentError(tried=False)
        code, timeout, sent = "unknown", self._timeout(), self._clock.monotonic()
        try:
            async with asyncio.timeout(timeout):
                result = await make()
            code = "ok"
            self._pace.went_well()
            return result
        except errors.ThrottledError as problem:
            code = "throttled"
            self._pace.refused(sent=sent, delay=problem.delay)
            raise
        except TimeoutError as problem:
            raise errors.UnknownOutcomeError(f"{op} took longer than {timeout:.0f} s") from problem
        except errors.ProviderError as problem:
            code = problem.code
            raise
        finally:
            self._metrics.provider_request(op, code)

    def _pace_changed(self) -> None:
        if self._pace.limited:
            message = "the provider refuses calls for haste: all go on more slowly, in order"
        else:
            message = "the provider no longer refuses calls for haste"
        self._announce(ReasonCode.THROTTLED, message)
