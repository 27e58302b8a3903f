"""Generating keys and signing, in a child process that ends when it is done.

Keys are generated once in an instance's life, and the cryptography library would stay in memory for all of it. The
child reads the request from its standard input and writes the answer to its standard output: no private key is ever an
argument, in the environment, or in a foreign file.
"""

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

CHILD_TIMEOUT_SECONDS = 30.0

# -I and -S: the child sees the agent's own modules, also those of a self-contained agent, and nothing else.
_CHILD = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from nstance.agent.credentials import key_generation; key_generation.run_child()"
)


class KeyGenerationError(Exception):
    """Keys could not be generated or read; the message contains nothing secret."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    private_pem: bytes
    public_pem: str
    signature: bytes | None = None  # the proof of a registration, if one was requested


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A key pair: generated, or completed from its private half. With a nonce, also the proof that a registration needs."""

    private_pem: bytes | None = None
    cluster: str = ""
    nonce: str = ""


KeyMaker = Callable[[Mapping[str, KeyRequest]], dict[str, KeyPair]]


def make(requests: Mapping[str, KeyRequest]) -> dict[str, KeyPair]:
    """In this process. Raises KeyGenerationError."""
    from nstance.clock import SystemRng
    from nstance.model.ids import ClusterId
    from nstance.pki import keys, proof

    rng, made = SystemRng(), {}
    for name, request in requests.items():
        try:
            key = keys.generate(rng) if request.private_pem is None else keys.private_key_from_pem(request.private_pem)
        except keys.UnacceptableKeyError as error:
            raise KeyGenerationError(f"{name!a}: {error}") from error
        signature = None
        if request.nonce:
            signature = proof.prove_registration(key, cluster=ClusterId(request.cluster), nonce=request.nonce)
        private = request.private_pem or keys.private_to_pem(key).encode()
        made[name] = KeyPair(private, keys.public_to_pem(keys.public_bytes(key)), signature)
    return made


def make_in_child(requests: Mapping[str, KeyRequest]) -> dict[str, KeyPair]:
    """Blocks for about a tenth of a second. Raises KeyGenerationError."""
    question = {
        name: [request.private_pem.decode("latin-1") if request.private_pem else None, request.cluster, request.nonce]
        for name, request in requests.items()
    }
    command = [sys.executable, "-I", "-S", "-c", _CHILD, json.dumps([path for path in sys.path if path])]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(question).encode(),
            capture_output=True,
            timeout=CHILD_TIMEOUT_SECONDS,
            check=False,
            env={},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KeyGenerationError(f"failed to run the key generation process: {type(error).__name__}") from error
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise KeyGenerationError(f"the key generation process failed: {' '.join(last)[:200]}") from error
    if "failed" in answer:
        raise KeyGenerationError(answer["failed"])
    return {
        name: KeyPair(private.encode("latin-1"), public, base64.b64decode(signature) if signature else None)
        for name, (private, public, signature) in answer["pairs"].items()
    }


def run_child() -> None:
    requests = {
        name: KeyRequest(private.encode("latin-1") if private else None, cluster, nonce)
        for name, (private, cluster, nonce) in json.load(sys.stdin).items()
    }
    try:
        pairs = {
            name: [
                pair.private_pem.decode("latin-1"),
                pair.public_pem,
                base64.b64encode(pair.signature).decode() if pair.signature else None,
            ]
            for name, pair in make(requests).items()
        }
        json.dump({"pairs": pairs}, sys.stdout)
    except KeyGenerationError as error:
        json.dump({"failed": str(error)}, sys.stdout)
