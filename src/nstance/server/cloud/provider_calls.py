"""All calls to the provider: only during the term, rate limited, with a deadline, and counted.

A throttled call slows down calls of every kind. The trap: a call may wait long for its turn, so the caller passes
`is_wanted`, which is asked again just before the call is sent.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from nstance.clock import Clock, Rng
from nstance.config.model.shard import ShardConfig
from nstance.model.decision import ReasonCode
from nstance.providers import errors
from nstance.server.cloud.rate_limiter import RateLimiter, RequestQueue
from nstance.server.waits import Waits
from nstance.telemetry.metrics import Metrics

T = TypeVar("T")


class NotSentError(Exception):
    """The call was not wanted any more when its turn came. `tried`: it had been sent before, and was throttled."""

    def __init__(self, *, tried: bool) -> None:
        super().__init__("the call was not wanted any more")
        self.tried = tried


def _always() -> bool:
    return True


@dataclass(eq=False, kw_only=True)
class ProviderCalls:
    """Calls to one provider during one term, with a queue for each kind of call."""

    ready: Callable[[], Awaitable[None]]  # waits until the term allows a call, and raises DeposedError
    clock: Clock
    rng: Rng
    metrics: Metrics
    waits: Waits
    settings: Callable[[], ShardConfig]
    record_event: Callable[[ReasonCode, str], None]

    def __post_init__(self) -> None:
        self._limiter = RateLimiter(self.clock, self.rng, on_change=self._on_limit_change)
        self.creates = self._limiter.add_queue(min_interval=lambda: self.settings().create_rate_limit)
        self.deletes = self._limiter.add_queue()
        self.lookups = self._limiter.add_queue()
        self.listings = self._limiter.add_queue()
        self.registrations = self._limiter.add_queue()  # at load balancers
        self.deregistrations = self._limiter.add_queue()
        self.others = self._limiter.add_queue()  # calls that no instance waits for

    async def once(
        self,
        op: str,
        queue: RequestQueue,
        call: Callable[[], Awaitable[T]],
        *,
        is_wanted: Callable[[], bool] = _always,
    ) -> T:
        """Makes one attempt. Raises ProviderError, also ThrottledError; NotSentError; DeposedError."""
        await queue.wait_turn(is_wanted=is_wanted)
        return await self._send(op, call, is_wanted)

    async def until_accepted(
        self,
        op: str,
        queue: RequestQueue,
        call: Callable[[], Awaitable[T]],
        *,
        place: int | None = None,
        is_wanted: Callable[[], bool] = _always,
    ) -> T:
        """Repeats a throttled call, which keeps its place in the queue. `place`: of a turn that has come already. Raises
        other ProviderErrors; NotSentError; DeposedError."""
        tried = False
        if place is None:
            place = await queue.wait_turn(is_wanted=is_wanted)
        while True:
            try:
                return await self._send(op, call, is_wanted)
            except errors.ThrottledError:
                tried = True
            except NotSentError:
                raise NotSentError(tried=tried) from None
            await queue.wait_turn(place, is_wanted=is_wanted)

    @property
    def rate(self) -> float:
        """Calls per second while the provider throttles; 0: not limited."""
        return self._limiter.rate if self._limiter.is_limited else 0.0

    def close(self) -> None:
        self._limiter.close()

    async def _send(self, op: str, call: Callable[[], Awaitable[T]], is_wanted: Callable[[], bool]) -> T:
        await self.ready()
        if not is_wanted():
            raise NotSentError(tried=False)
        code, timeout, sent = "unknown", self.settings().request_timeout, self.clock.monotonic()
        try:
            async with asyncio.timeout(timeout):
                result = await call()
            code = "ok"
            self._limiter.on_success()
            return result
        except errors.ThrottledError as error:
            code = "throttled"
            self._limiter.on_throttled(sent=sent, delay=error.delay)
            raise
        except TimeoutError as error:
            raise errors.UnknownOutcomeError(f"{op} took longer than {timeout:.0f} s") from error
        except errors.ProviderError as error:
            code = error.code
            raise
        finally:
            self.metrics.provider_request(op, code)

    def _on_limit_change(self) -> None:
        message = "provider throttles calls: all calls are slowed down, in order"
        if not self._limiter.is_limited:
            message = "provider no longer throttles calls"
        self.record_event(ReasonCode.THROTTLED, message)
