"""Workload keys: generated here on request, kept, and never sent. Only the public half leaves the VM.

The private key is on disk before the public one is written or sent; a missing public half is restored from the private
one. An unreadable private key is never replaced, because certificates in use may belong to it. The trap: a lost key is
generated again, and then the certificates that are already here fit no key.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nstance.agent.credentials import key_generation
from nstance.agent.files.folder import Folder, OpenFolder, SetupError, name_problem

MAX_KEYS = 256


class KeysRejectedError(Exception):
    """The requested keys cannot be provided; nothing was overwritten."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    name: str
    pem: str


def ensure(
    names: Iterable[str],
    folder: Folder,
    make: key_generation.KeyMaker,
    *,
    before_new: Callable[[], None] = lambda: None,
) -> list[PublicKey]:
    """All requested key pairs, generated where missing; `before_new` is called before a new one is stored. Raises
    KeysRejectedError."""
    wanted = list(dict.fromkeys(names))
    _check_names(wanted)
    try:
        with folder.enter() as inside:
            stored = {name: inside.read(f"{name}.key") for name in wanted}
            requests = {name: key_generation.KeyRequest(private) for name, private in stored.items()}
            pairs = make(requests) if wanted else {}
            if None in stored.values():
                before_new()
            for name, pair in pairs.items():
                _store(name, stored[name], pair, inside)
    except OSError as error:
        raise KeysRejectedError(f"failed to store keys in {folder.path}: {error.strerror}") from error
    except SetupError as error:
        raise KeysRejectedError(str(error)) from error
    except key_generation.KeyGenerationError as error:
        raise KeysRejectedError(f"{error}; move an unreadable key file away to get a new key") from error
    return [PublicKey(name, pairs[name].public_pem) for name in wanted]


def _check_names(wanted: list[str]) -> None:
    if len(wanted) > MAX_KEYS:
        raise KeysRejectedError(f"expected at most {MAX_KEYS} keys, found {len(wanted)}")
    folded: set[str] = set()
    for name in wanted:
        problem = name_problem(name)
        if problem is None and name.casefold() in folded:
            problem = "another key has the same name but for its case"
        if problem is not None:
            raise KeysRejectedError(f"key {name[:80]!a} rejected: {problem}")
        folded.add(name.casefold())


def _store(name: str, stored: bytes | None, pair: key_generation.KeyPair, inside: OpenFolder) -> None:
    if stored is None:
        inside.replace(f"{name}.key", pair.private_pem)
    if inside.read(f"{name}.pub") != pair.public_pem.encode():
        inside.replace(f"{name}.pub", pair.public_pem.encode())
