"""How to reach the API server and authenticate: from kubeconfig files or the pod's service account.

Merging follows kubectl: the first file that defines an entry wins, and paths are relative to their file. Unsupported
settings are rejected instead of ignored: a request without the configured impersonation would have the wrong permissions.
The trap: a kubeconfig may name a program to run and files to read. `parse` accepts neither, because its input comes from a
Secret, which others can write.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_MAX_BYTES = 4 * 1024 * 1024
_TAG_ERRORS = (ValueError, LookupError, TypeError, AttributeError)  # PyYAML raises them for `!!int x` and the like


class KubeconfigError(Exception):
    """A kubeconfig that cannot be used. The message names the file, what was expected and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecPlugin:
    """A program that prints an ExecCredential."""

    command: str
    api_version: str
    arguments: tuple[str, ...] = field(default=(), repr=False)
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    provide_cluster_info: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to reach and authenticate to an API server. A path is read again when its file changes."""

    server: str  # with a scheme, without a trailing slash
    namespace: str = "default"
    ca: bytes | Path | None = field(default=None, repr=False)  # None: the system's CAs
    insecure: bool = False
    tls_server_name: str = ""
    proxy: str = field(default="", repr=False)  # may contain a password
    certificate: bytes | Path | None = field(default=None, repr=False)
    key: bytes | Path | None = field(default=None, repr=False)
    token: str | Path | None = field(default=None, repr=False)
    plugin: ExecPlugin | None = None


def find(
    path: str = "", *, environment: Mapping[str, str], home: Path, service_account: Path = SERVICE_ACCOUNT
) -> Access:
    """The flag, KUBECONFIG, the pod's service account or ~/.kube/config, in this order. Raises KubeconfigError."""
    if path:
        return load([Path(path)])
    if environment.get("KUBECONFIG"):
        named = [Path(part) for part in environment["KUBECONFIG"].split(":") if part]
        present = [part for part in named if part.exists()]
        if not present:
            raise KubeconfigError(f"KUBECONFIG is {environment['KUBECONFIG']}: expected a file, found none")
        return load(present)
    if environment.get("KUBERNETES_SERVICE_HOST") and (service_account / "token").exists():
        return in_cluster(environment, service_account)
    default = home / ".kube" / "config"
    if default.exists():
        return load([default])
    raise KubeconfigError(
        "no Kubernetes API server configured: expected --kubeconfig, KUBECONFIG, a pod's service account "
        f"or {default}, found none of them"
    )


def in_cluster(environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> Access:
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    if ":" in host:
        host = f"[{host}]"
    try:
        namespace = (service_account / "namespace").read_text().strip()
    except OSError:
        namespace = ""
    return Access(
        server=f"https://{host}:{port}",
        namespace=namespace or "default",
        ca=service_account / "ca.crt",
        token=service_account / "token",
    )


def load(paths: Iterable[Path]) -> Access:
    """Loads and merges files as kubectl does. Raises KubeconfigError."""
    merged = _Merged()
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise KubeconfigError(f"failed to read kubeconfig {path}: {problem.strerror}") from None
        merged.add(_document(content, str(path)), str(path), path.absolute().parent)
    return merged.access()


def parse(content: bytes, *, source: str = "the kubeconfig") -> Access:
    """From untrusted bytes: they must be complete; no program is run and no file is read. Raises KubeconfigError."""
    merged = _Merged()
    merged.add(_document(content, source), source, None)
    return merged.access()


def _document(content: bytes, source: str) -> dict[str, Any]:
    if len(content) > _MAX_BYTES:
        raise KubeconfigError(f"{source} has {len(content)} bytes, expected at most {_MAX_BYTES}")
    try:
        document = yaml.safe_load(content)
    except (yaml.YAMLError, RecursionError, *_TAG_ERRORS) as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise KubeconfigError(f"{source} is not YAML{where}") from None  # the text may contain a token
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise KubeconfigError(f"{source} is not a kubeconfig: expected a mapping, found a {type(document).__name__}")
    return document


@dataclass(frozen=True, slots=True)
class _Entry:
    """A named cluster, user or context, and the file that it is from."""

    what: str
    body: dict[str, Any] = field(repr=False)
    source: str
    folder: Path | None  # None: paths and programs are not allowed

    def error(self, problem: str) -> KubeconfigError:
        return KubeconfigError(f"{self.source}: {self.what}: {problem}")

    def text(self, key: str) -> str:
        value = self.body.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.error(f"expected {key} to be a string, found a {type(value).__name__}")
        return value

    def flag(self, key: str) -> bool:
        value = self.body.get(key, False)
        if not isinstance(value, bool):
            raise self.error(f"expected {key} to be true or false, found a {type(value).__name__}")
        return value

    def file(self, key: str) -> Path | None:
        value = self.text(key)
        if not value:
            return None
        if self.folder is None:
            raise self.error(f"{key} names a file, which is not allowed here; use {key}-data or the value itself")
        return self.folder / value

    def content(self, key: str) -> bytes | Path | None:
        """The data, or else the file, as in kubectl."""
        data = self.text(f"{key}-data")
        if not data:
            return self.file(key)
        try:
            return base64.b64decode(data, validate=True)
        except ValueError:
            raise self.error(f"{key}-data is not base64") from None


class _Merged:
    def __init__(self) -> None:
        self._found: dict[tuple[str, str], _Entry] = {}
        self._current = ""
        self._sources: list[str] = []

    def add(self, document: dict[str, Any], source: str, folder: Path | None) -> None:
        self._sources.append(source)
        current = document.get("current-context")
        if isinstance(current, str) and not self._current:
            self._current = current
        for section, inner in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
            entries = document.get(section) or []
            if not isinstance(entries, list):
                raise KubeconfigError(f"{source}: expected {section} to be a list, found a {type(entries).__name__}")
            for entry in entries:
                if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                    raise KubeconfigError(f"{source}: an entry of {section} has no name")
                body = entry.get(inner) or {}
                if not isinstance(body, dict):
                    raise KubeconfigError(f"{source}: expected {inner} {entry['name']!r} to be a mapping")
                named = _Entry(f"{inner} {entry['name']!r}", body, source, folder)
                self._found.setdefault((inner, entry["name"]), named)

    def access(self) -> Access:
        sources, name = ", ".join(self._sources), self._current
        if not name:
            raise KubeconfigError(
                f"{sources}: expected a current-context, found none; set it with `kubectl config use-context`"
            )
        context = self._found.get(("context", name))
        if context is None:
            known = sorted(context_name for section, context_name in self._found if section == "context")
            raise KubeconfigError(f"{sources}: expected the context {name!r}, found {', '.join(known) or 'none'}")
        cluster = self._found.get(("cluster", context.text("cluster")))
        if cluster is None:
            raise context.error(f"its cluster {context.text('cluster')!r} is not defined")
        user = self._found.get(("user", context.text("user")))
        if user is None and context.text("user"):
            raise context.error(f"its user {context.text('user')!r} is not defined")
        access = _cluster(cluster, context.text("namespace") or "default")
        return access if user is None else _user(access, user)


def _cluster(entry: _Entry, namespace: str) -> Access:
    server = entry.text("server").rstrip("/")
    try:
        parts = urlsplit(server)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise entry.error(f"expected a server such as https://host:6443, found {server!r}")
    insecure = entry.flag("insecure-skip-tls-verify")
    ca = entry.content("certificate-authority")
    if insecure and ca:
        raise entry.error("insecure-skip-tls-verify and a certificate authority exclude each other; remove one")
    return Access(
        server=server,
        namespace=namespace,
        ca=ca,
        insecure=insecure,
        tls_server_name=entry.text("tls-server-name"),
        proxy=entry.text("proxy-url"),
    )


def _user(access: Access, entry: _Entry) -> Access:
    for unsupported in ("auth-provider", "username", "as", "as-uid", "as-groups", "as-user-extra"):
        if entry.body.get(unsupported):
            raise entry.error(f"{unsupported} is not supported; use a token, a client certificate or an exec plugin")
    certificate, key = entry.content("client-certificate"), entry.content("client-key")
    if (certificate is None) != (key is None):
        raise entry.error("expected a client certificate and its key, found only one of them")
    token: str | Path | None = entry.text("token") or entry.file("tokenFile")
    plugin = _plugin(entry) if entry.body.get("exec") is not None else None
    return replace(access, certificate=certificate, key=key, token=token, plugin=plugin)


def _plugin(user: _Entry) -> ExecPlugin:
    if user.folder is None:
        raise user.error("exec plugins are not allowed here; use a token or a client certificate")
    if not isinstance(user.body["exec"], dict):
        raise user.error("expected exec to be a mapping")
    entry = _Entry(f"{user.what}: exec", user.body["exec"], user.source, user.folder)
    command, version = entry.text("command"), entry.text("apiVersion")
    if not command:
        raise entry.error("expected a command, found none")
    if version not in EXEC_VERSIONS:
        raise entry.error(f"expected apiVersion to be one of {', '.join(EXEC_VERSIONS)}, found {version!r}")
    if entry.text("interactiveMode") == "Always":
        raise entry.error("interactiveMode Always is not supported: there is no terminal")
    arguments, environment = entry.body.get("args") or [], entry.body.get("env") or []
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        raise entry.error("expected args to be a list of strings")
    if not isinstance(environment, list) or not all(_is_variable(variable) for variable in environment):
        raise entry.error("expected env to be a list of {name, value}")
    # A command with a slash is relative to the file; one without is looked up in PATH.
    return ExecPlugin(
        command=str(user.folder / command) if "/" in command else command,
        api_version=version,
        arguments=tuple(arguments),
        environment=tuple((variable["name"], variable["value"]) for variable in environment),
        provide_cluster_info=entry.flag("provideClusterInfo"),
        hint=entry.text("installHint"),
    )


def _is_variable(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("value"), str)
