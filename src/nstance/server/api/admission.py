"""Whether an operator is still registered.

Storage knows; it is asked at most every 45 s for each operator, so a revocation made elsewhere reaches us within a minute,
and one made here takes effect at once. An open watch is looked at every 30 s, and then the verdict must be newer than that.
The trap: not knowing is neither yes nor no. While storage does not answer, whoever was registered when it last did stays
admitted (changes need storage anyway); a stranger has to wait.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from nstance.authority import errors as authority
from nstance.authority.operators import Operators
from nstance.clock import Clock
from nstance.objects import errors as storage
from nstance.pki import names
from nstance.wire import status
from nstance.wire.peer import Connection

log = logging.getLogger(__name__)

FRESH_SECONDS = 45.0  # a verdict is not asked for again; with the time to ask, less than a minute
FRESH_FOR_WATCH = 15.0  # with the time between two looks and the time to ask, less than a minute
AGAIN_SECONDS = 5.0  # after storage gave no answer
ASK_SECONDS = 5.0
MAX_VERDICTS = 10_000
GOODBYE_SECONDS = 0.5  # for the answer to an operator that revoked itself


@dataclass(slots=True)
class _Verdict:
    registered: bool | None = None  # None: storage was never heard
    known_at: float = float("-inf")
    retry_at: float = float("-inf")
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Admission:
    def __init__(
        self, operators: Operators, clock: Clock, *, connections: Callable[[], Iterable[Connection]] = tuple
    ) -> None:
        """`connections`: those that operators have open now."""
        self._operators = operators
        self._clock = clock
        self._verdicts: dict[names.Operator, _Verdict] = {}
        self._revoked: set[names.Operator] = set()
        self._connections = connections

    async def admit(self, who: names.Operator, *, watching: bool = False) -> None:
        """Raises PERMISSION_DENIED if the operator is not registered, UNAVAILABLE if nobody knows. `watching`: it is asked
        for a stream that stays open."""
        verdict = self._verdicts.get(who)
        if verdict is None:
            while len(self._verdicts) >= MAX_VERDICTS:
                self._verdicts.pop(next(iter(self._verdicts)))
            verdict = self._verdicts[who] = _Verdict()
        fresh = FRESH_FOR_WATCH if watching else FRESH_SECONDS
        if who not in self._revoked and self._is_due(verdict, fresh):
            async with verdict.asking:
                if self._is_due(verdict, fresh):
                    await self._ask(who, verdict)
        if who in self._revoked or verdict.registered is False:
            raise status.denied("this operator is not registered")
        if verdict.registered is None:
            raise status.unavailable("whether this operator is registered cannot be read now, try again")

    def _is_due(self, verdict: _Verdict, fresh: float) -> bool:
        return self._clock.monotonic() >= max(verdict.known_at + fresh, verdict.retry_at)

    def revoke(self, who: names.Operator, *, answered: Connection | None = None) -> None:
        """From now on it is refused here, and its connections end; `answered` a moment later, if it is one of them."""
        self._revoked.add(who)
        for connection in self._connections():
            if connection.identity != who:
                continue
            if connection is answered:
                asyncio.get_running_loop().call_later(GOODBYE_SECONDS, connection.abort)
            else:
                connection.abort()

    async def _ask(self, who: names.Operator, verdict: _Verdict) -> None:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                verdict.registered = await self._operators.is_registered(who)
            verdict.known_at = self._clock.monotonic()
        except (storage.StorageError, authority.AuthorityError, TimeoutError) as problem:
            verdict.retry_at = self._clock.monotonic() + AGAIN_SECONDS
            log.warning(
                "whether an operator is registered could not be read",
                extra={"operator": who.id, "tenant": who.tenant, "error": str(problem) or "timed out"},
            )
