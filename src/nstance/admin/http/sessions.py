"""Browser sessions: a signed cookie, and a token against forged requests that belongs to it.

The cookie says who it is, until when, and is signed with a key that lives as long as the process. Only which sessions were
ended is stored, so that a copy of their cookie is worth nothing. A page of another site can make a browser send the cookie,
but cannot read the token, which every change must repeat in a header.
"""

import base64
import hashlib
import hmac
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from nstance.clock import Clock, Rng
from nstance.model.ids import TenantId
from nstance.model.roles import Role

COOKIE = "nstance-session"
CSRF_HEADER = "X-CSRF-Token"
LIFE_SECONDS = 12 * 3600.0
MAX_COOKIE_LENGTH = 2048
KEY_BYTES = 32
MAX_ENDED = 10_000  # sessions; the one that ended first is forgotten


@dataclass(frozen=True, slots=True)
class Session:
    person: str
    role: Role
    tenant: TenantId | None  # None: that of the server
    token: str  # the ID of the token that it began with, if there is one
    expires: float  # by the wall clock
    id: str


class Sessions:
    def __init__(self, clock: Clock, rng: Rng) -> None:
        self._clock = clock
        self._rng = rng
        self._key = rng.bytes(KEY_BYTES)
        self._ended: OrderedDict[str, None] = OrderedDict()  # by ID

    def create(self, person: str, role: Role, *, tenant: TenantId | None = None, token: str = "") -> Session:
        return Session(person, role, tenant, token, self._clock.wall() + LIFE_SECONDS, f"{self._rng.bits(128):032x}")

    def cookie(self, session: Session) -> str:
        person, role, tenant = session.person, session.role.value, session.tenant
        return self.seal("cookie", [person, role, tenant, session.token, session.expires, session.id])

    def read(self, cookie: str) -> Session | None:
        """None for a cookie that is not ours, has expired, or whose session was ended."""
        found = self.unseal("cookie", cookie)
        if found is None:
            return None
        person, role, *rest = found
        session = Session(person, Role(role), *rest)
        return session if session.expires > self._clock.wall() and session.id not in self._ended else None

    def end(self, session: Session) -> None:
        self._ended[session.id] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def seal(self, purpose: str, value: Any) -> str:
        """A value that a browser keeps for us: it can be read, but not changed."""
        encoded = base64.urlsafe_b64encode(json.dumps(value).encode()).decode()
        return f"{encoded}.{self._sign(purpose, encoded)}"

    def unseal(self, purpose: str, text: str) -> Any:
        """None for a text that is not ours, or is for another purpose."""
        encoded, _, signature = text.partition(".")
        if len(text) > MAX_COOKIE_LENGTH or not _equal(signature, self._sign(purpose, encoded)):
            return None
        return json.loads(base64.urlsafe_b64decode(encoded))

    def csrf_token(self, session: Session) -> str:
        return self._sign("csrf", session.id)

    def has_token(self, session: Session, token: str) -> bool:
        return _equal(token, self.csrf_token(session))

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
