"""What proves who we are, kept fresh: token files that rotate, plugins whose answers expire, certificates.

`current` is asked before every request and mostly answers from memory. The trap: a credential may be refused long before
it says that it expires, so a 401 makes us `forget`, and the next look reads files and runs the plugin anew.
"""

import asyncio
import base64
import contextlib
import json
import os
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from nstance.clock import Clock
from nstance.kube import errors
from nstance.kube.kubeconfig import Access, Plugin

REREAD_SECONDS = 30.0  # the kubelet writes a pod's new token well before the old one ends
EARLY_SECONDS = 30.0  # a plugin is asked again this long before its answer expires
PLUGIN_SECONDS = 60.0
_LARGEST = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Proof:
    """What a request carries."""

    token: str = field(repr=False)
    context: ssl.SSLContext | None  # none for plain HTTP


@dataclass(frozen=True, slots=True)
class _Given:
    token: str = field(repr=False)
    pair: tuple[bytes, bytes] | None = field(default=None, repr=False)  # certificate and key
    until: float = float("inf")  # of the monotonic clock


class Credentials:
    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._proof: Proof | None = None
        self._until = 0.0
        self._made_from: tuple[bytes | None, ...] | None = None
        self._context: ssl.SSLContext | None = None
        self._one = asyncio.Lock()

    def forget(self, refused: Proof) -> None:
        """The server did not take it."""
        if self._proof is refused:
            self._proof = None

    async def current(self) -> Proof:
        """Raises Unavailable: nothing can be asked of the server without it."""
        if self._proof is not None and self._clock.monotonic() < self._until:
            return self._proof
        async with self._one:
            if self._proof is None or self._clock.monotonic() >= self._until:
                self._proof = await self._fresh()
            return self._proof

    async def _fresh(self) -> Proof:
        access, now = self._access, self._clock.monotonic()
        given = await self._ask(access.plugin) if access.plugin else _Given(self._token())
        certificate, key = given.pair or (
            _read(access.certificate, "the client certificate"),
            _read(access.key, "the client key"),
        )
        if not (given.token.isascii() and given.token.isprintable()):
            raise errors.UnavailableError("the token holds characters that no token has")
        context = None
        if access.server.startswith("https:"):
            context = self._tls(_read(access.ca, "the certificate authority"), certificate, key)
        self._until = min(given.until, now + REREAD_SECONDS if _rotates(access) else float("inf"))
        proof = self._proof
        if proof is not None and (proof.token, proof.context) == (given.token, context):
            return proof
        return Proof(given.token, context)

    def _token(self) -> str:
        token = self._access.token
        if isinstance(token, Path):
            return (_read(token, "the token") or b"").decode(errors="replace").strip()
        return token or ""

    def _tls(self, ca: bytes | None, certificate: bytes | None, key: bytes | None) -> ssl.SSLContext:
        made_from = (ca, certificate, key)
        if self._context is None or made_from != self._made_from:
            self._context = _context(ca, certificate, key, insecure=self._access.insecure)
            self._made_from = made_from
        return self._context

    async def _ask(self, plugin: Plugin) -> _Given:
        asked = self._clock.wall(), self._clock.monotonic()
        output = await _run(plugin, self._access)
        try:
            answer = json.loads(output)
            status = answer["status"]
            token = str(status.get("token") or "")
            certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
            if answer.get("kind") != "ExecCredential" or answer.get("apiVersion") != plugin.api_version:
                raise ValueError
            if not token and not (certificate and key):
                raise ValueError
            until = float("inf")
            if status.get("expirationTimestamp"):
                left = datetime.fromisoformat(status["expirationTimestamp"]).timestamp() - asked[0]
                until = asked[1] + max(1.0, left - EARLY_SECONDS)
            pair = (certificate.encode(), key.encode()) if certificate and key else None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise errors.UnavailableError(
                f"the credential plugin {plugin.command} printed no {plugin.api_version} ExecCredential "
                "with a token or a certificate"
            ) from None  # what it printed may hold a token
        return _Given(token, pair, until)


def _rotates(access: Access) -> bool:
    return any(isinstance(part, Path) for part in (access.ca, access.certificate, access.key, access.token))


def _read(source: bytes | Path | None, what: str) -> bytes | None:
    if not isinstance(source, Path):
        return source
    try:
        return source.read_bytes()
    except OSError as problem:
        raise errors.UnavailableError(f"{what} in {source} cannot be read: {problem.strerror}") from None


def _context(ca: bytes | None, certificate: bytes | None, key: bytes | None, *, insecure: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=ca.decode() if ca is not None else None)
    except (ssl.SSLError, ValueError):
        raise errors.UnavailableError("the certificate authority is not a list of PEM certificates") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Newer Pythons demand extensions that the CAs of many clusters lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate and key:
        with _unseen_file(certificate + b"\n" + key) as path:
            try:
                context.load_cert_chain(path, password=_no_password)
            except (ssl.SSLError, ValueError):
                raise errors.UnavailableError("the client certificate and key do not load or do not match") from None
    return context


def _no_password() -> bytes:
    """Without this, OpenSSL would ask on the terminal for the password of an encrypted key, and wait."""
    raise ValueError("the client key is encrypted; expected a plain PEM key")


@contextlib.contextmanager
def _unseen_file(content: bytes) -> Iterator[str]:
    """A path for an API that only takes paths; where the system can, no disk ever holds the content."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        with open(os.memfd_create("tls", os.MFD_CLOEXEC), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile() as kept:  # mode 0600
        kept.write(content)
        kept.flush()
        yield kept.name


async def _run(plugin: Plugin, access: Access) -> bytes:
    environment = {**os.environ, **dict(plugin.environment), "KUBERNETES_EXEC_INFO": _exec_info(plugin, access)}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.arguments,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as problem:
        hint = f"; {plugin.hint.strip()}" if plugin.hint else ""
        raise errors.UnavailableError(
            f"the credential plugin {plugin.command} cannot be run: {problem.strerror}{hint}"
        ) from None
    try:
        async with asyncio.timeout(PLUGIN_SECONDS):
            output, complaint = await process.communicate()
    except TimeoutError:
        raise errors.UnavailableError(
            f"the credential plugin {plugin.command} took longer than {PLUGIN_SECONDS:g} s"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = complaint.decode(errors="replace").strip().rpartition("\n")[2][:200]
        raise errors.UnavailableError(f"the credential plugin {plugin.command} ended with {process.returncode}: {last}")
    if len(output) > _LARGEST:
        raise errors.UnavailableError(f"the credential plugin {plugin.command} printed {len(output)} bytes")
    return output


def _exec_info(plugin: Plugin, access: Access) -> str:
    spec: dict[str, Any] = {"interactive": False}
    if plugin.tell_cluster:
        ca = _read(access.ca, "the certificate authority")
        cluster: dict[str, Any] = {"server": access.server}
        if ca is not None:
            cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
        if access.tls_server_name:
            cluster["tls-server-name"] = access.tls_server_name
        if access.insecure:
            cluster["insecure-skip-tls-verify"] = True
        spec["cluster"] = cluster
    return json.dumps({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec})
