"""Whether an operator is still registered.

Storage knows; it is asked at most once a minute for each operator, so a revocation made elsewhere reaches us within that
time, and one made here takes effect at once. The trap: not knowing is neither yes nor no. While storage does not answer,
whoever was registered when it last did stays admitted (changes need storage anyway); a stranger has to wait.
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
AGAIN_SECONDS = 5.0  # after storage gave no answer
ASK_SECONDS = 5.0
MAX_VERDICTS = 10_000
GOODBYE_SECONDS = 0.5  # for the answer to an operator that revoked itself


@dataclass(slots=True)
class _Verdict:
    registered: bool | None = None  # None: storage was never heard
    ask_after: float = float("-inf")
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Admission:
    def __init__(self, operators: Operators, clock: Clock) -> None:
        self._operators = operators
        self._clock = clock
        self._verdicts: dict[names.Operator, _Verdict] = {}
        self._revoked: set[names.Operator] = set()
        self.connections: Callable[[], Iterable[Connection]] = tuple

    async def admit(self, who: names.Operator) -> None:
        """Raises PERMISSION_DENIED if the operator is not registered, UNAVAILABLE if nobody knows."""
        verdict = self._verdicts.get(who)
        if verdict is None:
            while len(self._verdicts) >= MAX_VERDICTS:
                self._verdicts.pop(next(iter(self._verdicts)))
            verdict = self._verdicts[who] = _Verdict()
        if who not in self._revoked and self._clock.monotonic() >= verdict.ask_after:
            async with verdict.asking:
                if self._clock.monotonic() >= verdict.ask_after:
                    await self._ask(who, verdict)
        if who in self._revoked or verdict.registered is False:
            raise status.denied("this operator is not registered")
        if verdict.registered is None:
            raise status.unavailable("whether this operator is registered cannot be read now, try again")

    def revoke(self, who: names.Operator, *, answered: Connection | None = None) -> None:
        """From now on it is refused here, and its connections end; `answered` a moment later, if it is one of them."""
        self._revoked.add(who)
        for connection in self.connections():
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
            verdict.ask_after = self._clock.monotonic() + FRESH_SECONDS
        except (storage.StorageError, authority.AuthorityError, TimeoutError) as problem:
            verdict.ask_after = self._clock.monotonic() + AGAIN_SECONDS
            log.warning(
                "whether an operator is registered could not be read",
                extra={"operator": who.id, "tenant": who.tenant, "error": str(problem) or "timed out"},
            )
