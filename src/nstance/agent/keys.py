"""Workload keys: made here on request, kept, and never sent. What leaves the VM is the public half.

The private key is on disk before the public one is written or sent; a pair that lost its public half is repaired from
the private one. A private key that cannot be read is never replaced: certificates in use may belong to it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from nstance.agent.folder import Folder, Inside, name_problem
from nstance.clock import Chance
from nstance.pki import keys

MAX_KEYS = 256


class Refused(Exception):
    """A request for keys that cannot be met; nothing was overwritten."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    name: str
    pem: str


def ensure(names: Iterable[str], folder: Folder, chance: Chance) -> list[PublicKey]:
    """All the requested pairs, made where they are missing. Raises Refused, before anything is made where it can."""
    wanted = list(dict.fromkeys(names))
    if len(wanted) > MAX_KEYS:
        raise Refused(f"expected at most {MAX_KEYS} keys, found {len(wanted)}")
    folded: set[str] = set()
    for name in wanted:
        problem = name_problem(name)
        if problem is None and name.casefold() in folded:
            problem = "another key has the same name but for its case"
        if problem is not None:
            raise Refused(f"key {name[:80]!a} refused: {problem}")
        folded.add(name.casefold())
    try:
        with folder.enter() as inside:
            return [PublicKey(name, _pair(name, inside, chance)) for name in wanted]
    except OSError as error:
        raise Refused(f"cannot keep keys in {folder.path}: {error.strerror}") from error


def _pair(name: str, inside: Inside, chance: Chance) -> str:
    stored = inside.read(f"{name}.key")
    if stored is None:
        private = keys.generate(chance)
        inside.replace(f"{name}.key", keys.private_to_pem(private).encode())
    else:
        try:
            private = keys.private_key_from_pem(stored)
        except keys.UnacceptableKey as error:
            raise Refused(f"key file {name!a}.key: {error}; move it away to get a new key") from error
    pem = keys.public_to_pem(keys.public_bytes(private))
    if inside.read(f"{name}.pub") != pem.encode():
        inside.replace(f"{name}.pub", pem.encode())
    return pem
