"""Bearer tokens of people, with a role and a tenant each, in a file that holds only their hashes.

A token is shown once, when it is created. It has 256 random bits, so a plain SHA-256 of it cannot be guessed back. The
trap: a file that cannot be read lets nobody in, because the token that it no longer has may be the revoked one.
"""

import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nstance.admin import errors, files
from nstance.clock import Clock, Rng
from nstance.model import ids
from nstance.model.ids import TenantId
from nstance.model.roles import Role
from nstance.wire.call import PERSON

VERSION = 1
MAX_FILE_BYTES = 1 << 20
MAX_TOKENS = 1_000
CHECK_SECONDS = 1.0  # between two looks at the file
PREFIX = "nst"
_TOKEN = re.compile(rf"{PREFIX}_([0-9a-f]{{12}})_[0-9a-f]{{64}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    id: str
    person: str
    role: Role
    tenant: TenantId
    created: int
    expires: int | None
    sha256: str


def create(person: str, role: Role, tenant: TenantId, *, now: float, life: float | None, rng: Rng) -> tuple[str, Token]:
    """The token itself, which is stored nowhere, and its entry. Raises CommandError."""
    if not PERSON.fullmatch(person):
        raise errors.CommandError(
            f"expected a person's name of letters, digits and @._+:/- without blanks, at most 96, found {person[:128]!r}"
        )
    id = f"{rng.bits(48):012x}"
    text = f"{PREFIX}_{id}_{rng.bits(256):064x}"
    expires = int(now + life) if life is not None else None
    return text, Token(
        id=id, person=person, role=role, tenant=tenant, created=int(now), expires=expires, sha256=_hash(text)
    )


def load(path: Path) -> dict[str, Token]:
    """By ID. Raises CommandError."""
    try:
        with path.open("rb") as file:
            body = file.read(MAX_FILE_BYTES + 1)
        document = json.loads(body)
        if document["v"] != VERSION:
            raise errors.CommandError(f"{path} has version {document['v']!r}, this program supports version {VERSION}")
        found = [_decode(each) for each in document["tokens"]]
        tokens = {token.id: token for token in found}
        if len(body) > MAX_FILE_BYTES or len(tokens) != len(found):
            raise ValueError("too long, or an ID occurs twice")
    except OSError as problem:
        raise errors.CommandError(f"cannot read the tokens in {path}: {problem.strerror}") from problem
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise errors.CommandError(f"{path} is not a file of tokens: {problem!r}; restore it from a backup") from problem
    return tokens


def store(path: Path, tokens: Mapping[str, Token]) -> None:
    if len(tokens) > MAX_TOKENS:
        raise errors.CommandError(f"expected at most {MAX_TOKENS:,} tokens, found {len(tokens):,}; revoke some")
    document = {"v": VERSION, "tokens": [{**asdict(each), "role": each.role.value} for each in tokens.values()]}
    files.write(path, json.dumps(document, indent=2).encode() + b"\n")


class TokenFile:
    """The tokens in a file that may change while a program uses it."""

    def __init__(self, path: Path, clock: Clock, *, on_problem: Callable[[str], None] = lambda text: None) -> None:
        """Raises CommandError if the file cannot be used now."""
        self._path = path
        self._clock = clock
        self._on_problem = on_problem
        self._tokens = load(path)
        self._stamp = self._look()
        self._checked = clock.monotonic()

    def find(self, text: str) -> Token | None:
        """The entry of a token that is valid now."""
        match = _TOKEN.fullmatch(text)
        token = self.get(match[1]) if match is not None else None
        return token if token is not None and hmac.compare_digest(token.sha256, _hash(text)) else None

    def get(self, id: str) -> Token | None:
        """The entry with an ID, if it has not expired."""
        self._refresh()
        token = self._tokens.get(id)
        is_over = token is not None and token.expires is not None and token.expires <= self._clock.wall()
        return None if is_over else token

    def _refresh(self) -> None:
        now = self._clock.monotonic()
        if now - self._checked < CHECK_SECONDS:
            return
        self._checked, stamp = now, self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._tokens = load(self._path)
        except errors.CommandError as problem:
            self._tokens = {}
            self._on_problem(f"nobody can log in with a token: {errors.explain(problem)}")

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _decode(raw: Mapping[str, Any]) -> Token:
    token = Token(**{**raw, "role": Role(raw["role"])})
    texts = (token.id, token.person, token.tenant, token.sha256)
    times = (token.created, token.expires or 0)
    if not all(isinstance(text, str) for text in texts) or not all(type(time) is int for time in times):
        raise ValueError("a field has the wrong type")
    if not PERSON.fullmatch(token.person) or not ids.is_name(token.tenant):
        raise ValueError("not a person or not a tenant")
    return token
