"""Workload keys: made here on request, kept, and never sent. What leaves the VM is the public half.

The private key is on disk before the public one is written or sent; a pair that lost its public half is repaired from
the private one. A private key that cannot be read is never replaced: certificates in use may belong to it. The trap: for
a key that was lost a new one is made, and then certificates that are already here belong to none.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nstance.agent import keywork
from nstance.agent.folder import Folder, Inside, Unusable, name_problem

MAX_KEYS = 256


class Refused(Exception):
    """A request for keys that cannot be met; nothing was overwritten."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    name: str
    pem: str


def ensure(
    names: Iterable[str], folder: Folder, make: keywork.Maker, *, before_new: Callable[[], None] = lambda: None
) -> list[PublicKey]:
    """All the requested pairs, made where they are missing; `before_new` is called before a new one is kept. Raises
    Refused."""
    wanted = list(dict.fromkeys(names))
    _check(wanted)
    try:
        with folder.enter() as inside:
            stored = {name: inside.read(f"{name}.key") for name in wanted}
            pairs = make({name: keywork.Wish(private) for name, private in stored.items()}) if wanted else {}
            if None in stored.values():
                before_new()
            for name, pair in pairs.items():
                _keep(name, stored[name], pair, inside)
    except OSError as error:
        raise Refused(f"cannot keep keys in {folder.path}: {error.strerror}") from error
    except Unusable as error:
        raise Refused(str(error)) from error
    except keywork.Failed as error:
        raise Refused(f"{error}; a key file that cannot be read must be moved away to get a new key") from error
    return [PublicKey(name, pairs[name].public_pem) for name in wanted]


def _check(wanted: list[str]) -> None:
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


def _keep(name: str, stored: bytes | None, pair: keywork.Pair, inside: Inside) -> None:
    if stored is None:
        inside.replace(f"{name}.key", pair.private_pem)
    if inside.read(f"{name}.pub") != pair.public_pem.encode():
        inside.replace(f"{name}.pub", pair.public_pem.encode())
