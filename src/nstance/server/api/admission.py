"""Checks that an operator is still registered.

Storage is asked at most every 45 s for each operator, so a revocation through another server takes effect within a
minute; one through this server takes effect at once. For an open watch it is checked every 30 s with a shorter limit.
The trap: an error is neither yes nor no. While storage does not answer, an operator that was registered before stays
admitted (changes need storage anyway); an unknown one is asked to try again.
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
from nstance.server.waits import WAITS, Waits
from nstance.wire import status
from nstance.wire.peer import Connection

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0  # after storage gave no answer
READ_TIMEOUT_SECONDS = 5.0
MAX_REGISTRATIONS = 10_000
LAST_ANSWER_SECONDS = 0.5  # for the answer to an operator that revoked itself


@dataclass(slots=True)
class _Registration:
    is_registered: bool | None = None  # None: storage has never answered
    read_at: float = float("-inf")
    retry_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Admission:
    def __init__(
        self,
        operators: Operators,
        clock: Clock,
        *,
        connections: Callable[[], Iterable[Connection]] = tuple,
        waits: Waits = WAITS,
    ) -> None:
        """`connections`: those that operators have open now."""
        self._operators = operators
        self._clock = clock
        self._waits = waits
        self._registrations: dict[names.Operator, _Registration] = {}
        self._revoked: set[names.Operator] = set()
        self._connections = connections

    async def admit(self, who: names.Operator, *, watching: bool = False) -> None:
        """Raises PERMISSION_DENIED if the operator is not registered, UNAVAILABLE if that is not known. `watching`: for a
        stream that stays open."""
        known = self._registrations.get(who)
        if known is None:
            while len(self._registrations) >= MAX_REGISTRATIONS:
                self._registrations.pop(next(iter(self._registrations)))
            known = self._registrations[who] = _Registration()
        max_age = self._waits.watch_admission if watching else self._waits.admission
        if who not in self._revoked and self._is_due(known, max_age):
            async with known.lock:
                if self._is_due(known, max_age):
                    await self._read(who, known)
        if who in self._revoked or known.is_registered is False:
            raise status.denied("this operator is not registered")
        if known.is_registered is None:
            raise status.unavailable("failed to read this operator's registration, try again")

    def _is_due(self, known: _Registration, max_age: float) -> bool:
        return self._clock.monotonic() >= max(known.read_at + max_age, known.retry_at)

    def revoke(self, who: names.Operator, *, answered: Connection | None = None) -> None:
        """Rejects the operator from now on and aborts its connections; `answered` a moment later, if it is one of them."""
        self._revoked.add(who)
        for connection in self._connections():
            if connection.identity != who:
                continue
            if connection is answered:
                asyncio.get_running_loop().call_later(LAST_ANSWER_SECONDS, connection.abort)
            else:
                connection.abort()

    async def _read(self, who: names.Operator, known: _Registration) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                known.is_registered = await self._operators.is_registered(who)
            known.read_at = self._clock.monotonic()
        except (storage.StorageError, authority.AuthorityError, TimeoutError) as error:
            known.retry_at = self._clock.monotonic() + RETRY_SECONDS
            log.warning(
                "failed to read the registration of an operator",
                extra={"operator": who.id, "tenant": who.tenant, "error": str(error) or "timed out"},
            )
