"""Credentials for an API server, kept fresh: rotating token files, exec plugins and certificates.

`current` is called before every request and usually answers from memory. The trap: a server may reject a credential long
before its expiry, so a 401 calls `forget`, and the next call reads files and runs the plugin again.
"""

import asyncio
import base64
import json
import os
import ssl
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from nstance import key_pairs
from nstance.clock import Clock
from nstance.kube import errors
from nstance.kube.kubeconfig import Access, ExecPlugin

REREAD_SECONDS = 30.0  # the kubelet writes a pod's new token well before the old one expires
EARLY_SECONDS = 30.0  # a plugin runs again this long before its credential expires
PLUGIN_TIMEOUT_SECONDS = 60.0
_MAX_OUTPUT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Credential:
    """What a request is sent with."""

    token: str = field(repr=False)
    context: ssl.SSLContext | None  # None for plain HTTP


@dataclass(frozen=True, slots=True)
class _Answer:
    token: str = field(repr=False)
    pair: tuple[bytes, bytes] | None = field(default=None, repr=False)  # certificate and key
    until: float = float("inf")  # on the monotonic clock


class Credentials:
    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._credential: Credential | None = None
        self._until = 0.0
        self._made_from: tuple[bytes | None, ...] | None = None
        self._context: ssl.SSLContext | None = None
        self._lock = asyncio.Lock()

    def forget(self, rejected: Credential) -> None:
        """Drops a credential that the server rejected."""
        if self._credential is rejected:
            self._credential = None

    async def current(self) -> Credential:
        """Raises UnavailableError."""
        if self._credential is not None and self._clock.monotonic() < self._until:
            return self._credential
        async with self._lock:
            if self._credential is None or self._clock.monotonic() >= self._until:
                self._credential = await self._load()
            return self._credential

    async def _load(self) -> Credential:
        access, now = self._access, self._clock.monotonic()
        answer = await self._run_plugin(access.plugin) if access.plugin else _Answer(self._token())
        certificate, key = answer.pair or (
            _read(access.certificate, "the client certificate"),
            _read(access.key, "the client key"),
        )
        if not (answer.token.isascii() and answer.token.isprintable()):
            raise errors.UnavailableError("the token has characters that are not allowed in a token")
        context = None
        if access.server.startswith("https:"):
            context = self._tls(_read(access.ca, "the certificate authority"), certificate, key)
        self._until = min(answer.until, now + REREAD_SECONDS if _uses_files(access) else float("inf"))
        current = self._credential
        if current is not None and (current.token, current.context) == (answer.token, context):
            return current
        return Credential(answer.token, context)

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

    async def _run_plugin(self, plugin: ExecPlugin) -> _Answer:
        wall, monotonic = self._clock.wall(), self._clock.monotonic()
        output = await _run(plugin, self._access)
        try:
            document = json.loads(output)
            status = document["status"]
            token = str(status.get("token") or "")
            certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
            if document.get("kind") != "ExecCredential" or document.get("apiVersion") != plugin.api_version:
                raise ValueError
            if not token and not (certificate and key):
                raise ValueError
            until = float("inf")
            if status.get("expirationTimestamp"):
                lifetime = datetime.fromisoformat(status["expirationTimestamp"]).timestamp() - wall
                until = monotonic + max(1.0, lifetime - EARLY_SECONDS)
            pair = (certificate.encode(), key.encode()) if certificate and key else None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            what = f"printed no {plugin.api_version} ExecCredential with a token or a certificate"
            raise _plugin_error(plugin, what) from None  # the output may contain a token
        return _Answer(token, pair, until)


def _uses_files(access: Access) -> bool:
    return any(isinstance(part, Path) for part in (access.ca, access.certificate, access.key, access.token))


def _read(source: bytes | Path | None, what: str) -> bytes | None:
    if not isinstance(source, Path):
        return source
    try:
        return source.read_bytes()
    except OSError as problem:
        raise errors.UnavailableError(f"{what} in {source} could not be read: {problem.strerror}") from None


def _context(ca: bytes | None, certificate: bytes | None, key: bytes | None, *, insecure: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=ca.decode() if ca is not None else None)
    except (ssl.SSLError, ValueError):
        raise errors.UnavailableError("the certificate authority is not a list of PEM certificates") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Newer Python versions require extensions that the CAs of many clusters lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate and key:
        try:
            key_pairs.load(context, certificate, key)
        except (ssl.SSLError, ValueError):
            raise errors.UnavailableError("the client certificate and key do not load or do not match") from None
    return context


async def _run(plugin: ExecPlugin, access: Access) -> bytes:
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
        raise _plugin_error(plugin, f"could not be run: {problem.strerror}{hint}") from None
    try:
        async with asyncio.timeout(PLUGIN_TIMEOUT_SECONDS):
            output, error_output = await process.communicate()
    except TimeoutError:
        raise _plugin_error(plugin, f"took longer than {PLUGIN_TIMEOUT_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = error_output.decode(errors="replace").strip().rpartition("\n")[2][:200]
        raise _plugin_error(plugin, f"exited with {process.returncode}: {last}")
    if len(output) > _MAX_OUTPUT_BYTES:
        raise _plugin_error(plugin, f"printed {len(output)} bytes")
    return output


def _plugin_error(plugin: ExecPlugin, what: str) -> errors.UnavailableError:
    return errors.UnavailableError(f"the credential plugin {plugin.command} {what}")


def _exec_info(plugin: ExecPlugin, access: Access) -> str:
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
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
