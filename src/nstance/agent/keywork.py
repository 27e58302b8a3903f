"""Everything that needs a private key's mathematics, done in a process of its own that ends when it is done.

Keys are made once in an instance's life; the library that makes them would stay in memory for all of it. So the agent
asks a child process, with the question on its standard input and the answer on its standard output: no private key is
ever an argument, in the environment, or in a file that is not its own.
"""

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

CHILD_SECONDS = 30.0

# -I and -S: the child sees the agent's own modules, also those of a self-contained agent, and nothing else.
_CHILD = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from nstance.agent import keywork; keywork.child()"


class Failed(Exception):
    """The keys could not be made or read; the message holds nothing secret."""


@dataclass(frozen=True, slots=True)
class Pair:
    private_pem: bytes
    public_pem: str
    signature: bytes | None = None  # over the message, if there was one


@dataclass(frozen=True, slots=True)
class Wish:
    """A pair: made, or completed from its private half. With a nonce, the proof that a registration needs."""

    private_pem: bytes | None = None
    cluster: str = ""
    nonce: str = ""


Maker = Callable[[Mapping[str, Wish]], dict[str, Pair]]


def make(desired_groups: Mapping[str, Wish]) -> dict[str, Pair]:
    """In this process. Raises Failed."""
    from nstance.clock import SystemRng
    from nstance.model.ids import ClusterId
    from nstance.pki import keys, proof

    rng, made = SystemRng(), {}
    for name, desired in desired_groups.items():
        try:
            key = keys.generate(rng) if desired.private_pem is None else keys.private_key_from_pem(desired.private_pem)
        except keys.UnacceptableKeyError as error:
            raise Failed(f"{name!a}: {error}") from error
        signature = None
        if desired.nonce:
            signature = proof.prove_registration(key, cluster=ClusterId(desired.cluster), nonce=desired.nonce)
        private = desired.private_pem or keys.private_to_pem(key).encode()
        made[name] = Pair(private, keys.public_to_pem(keys.public_bytes(key)), signature)
    return made


def make_apart(desired_groups: Mapping[str, Wish]) -> dict[str, Pair]:
    """In a child process. Blocks for about a tenth of a second. Raises Failed."""
    question = {
        name: [desired.private_pem.decode("latin-1") if desired.private_pem else None, desired.cluster, desired.nonce]
        for name, desired in desired_groups.items()
    }
    command = [sys.executable, "-I", "-S", "-c", _CHILD, json.dumps([path for path in sys.path if path])]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(question).encode(),
            capture_output=True,
            timeout=CHILD_SECONDS,
            check=False,
            env={},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"the process that makes keys did not do it: {type(error).__name__}") from error
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise Failed(f"the process that makes keys failed: {' '.join(last)[:200]}") from error
    if "failed" in answer:
        raise Failed(answer["failed"])
    return {
        name: Pair(private.encode("latin-1"), public, base64.b64decode(signature) if signature else None)
        for name, (private, public, signature) in answer["pairs"].items()
    }


def child() -> None:
    """The child's whole life."""
    question = json.load(sys.stdin)
    desired_groups = {
        name: Wish(private.encode("latin-1") if private else None, cluster, nonce)
        for name, (private, cluster, nonce) in question.items()
    }
    try:
        pairs = {
            name: [
                pair.private_pem.decode("latin-1"),
                pair.public_pem,
                base64.b64encode(pair.signature).decode() if pair.signature else None,
            ]
            for name, pair in make(desired_groups).items()
        }
        json.dump({"pairs": pairs}, sys.stdout)
    except Failed as error:
        json.dump({"failed": str(error)}, sys.stdout)
