"""Where the API server is and who we are there: from a kubeconfig, several of them, or the pod's service account.

Merging follows kubectl: of several files the first one that names a thing wins, and relative paths count from the file
that holds them. What we do not do is refused instead of ignored: a request sent without the impersonation that somebody
configured would act with the wrong rights. The trap: a kubeconfig may name a program to run and files to read. One that
comes from a Secret was written by whoever may write Secrets, so `parse` takes neither from it.
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
_LARGEST = 4 * 1024 * 1024
_TAGGED = (ValueError, LookupError, TypeError, AttributeError)  # what PyYAML raises for `!!int x` and the like


class BadKubeconfig(Exception):
    """It cannot be used as it is; the message says which file, what was expected and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A program that prints an ExecCredential."""

    command: str
    api_version: str
    arguments: tuple[str, ...] = field(default=(), repr=False)
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    tell_cluster: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A path is read again as its file changes; bytes and texts are the thing itself."""

    server: str  # with a scheme, without a slash at its end
    namespace: str = "default"
    ca: bytes | Path | None = field(default=None, repr=False)  # none: what the system trusts
    insecure: bool = False
    tls_server_name: str = ""
    proxy: str = field(default="", repr=False)  # may hold a password
    certificate: bytes | Path | None = field(default=None, repr=False)
    key: bytes | Path | None = field(default=None, repr=False)
    token: str | Path | None = field(default=None, repr=False)
    plugin: Plugin | None = None


def find(
    path: str = "",
    *,
    environment: Mapping[str, str],
    home: Path,
    context: str = "",
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """The flag, then KUBECONFIG, then the pod's service account, then ~/.kube/config. Raises BadKubeconfig."""
    if path:
        return load([Path(path)], context=context)
    if environment.get("KUBECONFIG"):
        named = [Path(part) for part in environment["KUBECONFIG"].split(":") if part]
        present = [part for part in named if part.exists()]
        if not present:
            raise BadKubeconfig(f"KUBECONFIG names {environment['KUBECONFIG']}, but no such file exists")
        return load(present, context=context)
    if environment.get("KUBERNETES_SERVICE_HOST") and (service_account / "token").exists():
        return in_cluster(environment, service_account)
    usual = home / ".kube" / "config"
    if usual.exists():
        return load([usual], context=context)
    raise BadKubeconfig(
        "no way to the Kubernetes API server: expected --kubeconfig, KUBECONFIG, a pod's service account "
        f"or {usual}, found none of them"
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


def load(paths: Iterable[Path], *, context: str = "") -> Access:
    """From files, merged as kubectl does. Raises BadKubeconfig."""
    merged = _Merged()
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise BadKubeconfig(f"the kubeconfig {path} cannot be read: {problem.strerror}") from None
        merged.add(_document(content, str(path)), str(path), path.absolute().parent)
    return merged.access(context)


def parse(content: bytes, *, source: str = "the kubeconfig", context: str = "") -> Access:
    """From bytes that somebody else wrote: everything has to be in there; no program is run and no file read."""
    merged = _Merged()
    merged.add(_document(content, source), source, None)
    return merged.access(context)


def _document(content: bytes, source: str) -> dict[str, Any]:
    if len(content) > _LARGEST:
        raise BadKubeconfig(f"{source} has {len(content)} bytes, which no kubeconfig needs")
    try:
        document = yaml.safe_load(content)
    except (yaml.YAMLError, RecursionError, *_TAGGED) as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadKubeconfig(f"{source} is not YAML{where}") from None  # the text may hold a token
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise BadKubeconfig(f"{source} is not a kubeconfig: expected a mapping, found a {type(document).__name__}")
    return document


@dataclass(frozen=True, slots=True)
class _Entry:
    """A named cluster, user or context, and where it was written."""

    what: str
    body: dict[str, Any] = field(repr=False)
    source: str
    folder: Path | None  # none: nothing outside the text may be named

    def bad(self, problem: str) -> BadKubeconfig:
        return BadKubeconfig(f"{self.source}: {self.what}: {problem}")

    def text(self, key: str) -> str:
        value = self.body.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.bad(f"{key} should be a text, found a {type(value).__name__}")
        return value

    def flag(self, key: str) -> bool:
        value = self.body.get(key, False)
        if not isinstance(value, bool):
            raise self.bad(f"{key} should be true or false, found a {type(value).__name__}")
        return value

    def file(self, key: str) -> Path | None:
        value = self.text(key)
        if not value:
            return None
        if self.folder is None:
            raise self.bad(f"{key} names a file; here only {key}-data or the value itself may be used")
        return self.folder / value

    def content(self, key: str) -> bytes | Path | None:
        """Data wins over a file, as in kubectl."""
        data = self.text(f"{key}-data")
        if not data:
            return self.file(key)
        try:
            return base64.b64decode(data, validate=True)
        except ValueError:
            raise self.bad(f"{key}-data is not base64") from None


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
                raise BadKubeconfig(f"{source}: {section} should be a list, found a {type(entries).__name__}")
            for entry in entries:
                if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                    raise BadKubeconfig(f"{source}: an entry of {section} has no name")
                body = entry.get(inner) or {}
                if not isinstance(body, dict):
                    raise BadKubeconfig(f"{source}: {inner} {entry['name']!r} should be a mapping")
                named = _Entry(f"{inner} {entry['name']!r}", body, source, folder)
                self._found.setdefault((inner, entry["name"]), named)

    def access(self, wanted: str) -> Access:
        everywhere = ", ".join(self._sources)
        name = wanted or self._current
        if not name:
            raise BadKubeconfig(f"{everywhere}: there is no current-context; set it with `kubectl config use-context`")
        context = self._found.get(("context", name))
        if context is None:
            have = sorted(found for section, found in self._found if section == "context")
            raise BadKubeconfig(f"{everywhere}: there is no context {name!r}; found {', '.join(have) or 'none'}")
        cluster = self._found.get(("cluster", context.text("cluster")))
        if cluster is None:
            raise context.bad(f"its cluster {context.text('cluster')!r} is not there")
        user = self._found.get(("user", context.text("user")))
        if user is None and context.text("user"):
            raise context.bad(f"its user {context.text('user')!r} is not there")
        access = _cluster(cluster, context.text("namespace") or "default")
        return access if user is None else _user(access, user)


def _cluster(entry: _Entry, namespace: str) -> Access:
    server = entry.text("server").rstrip("/")
    try:
        parts = urlsplit(server)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise entry.bad(f"server should be like https://host:6443, found {server!r}")
    insecure = entry.flag("insecure-skip-tls-verify")
    ca = entry.content("certificate-authority")
    if insecure and ca:
        raise entry.bad("insecure-skip-tls-verify and a certificate authority exclude each other; remove one")
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
            raise entry.bad(f"{unsupported} is not supported; use a token, a client certificate or an exec plugin")
    certificate, key = entry.content("client-certificate"), entry.content("client-key")
    if (certificate is None) != (key is None):
        raise entry.bad("a client certificate and its key come together, found only one of them")
    token: str | Path | None = entry.text("token") or entry.file("tokenFile")
    plugin = _plugin(entry) if entry.body.get("exec") is not None else None
    return replace(access, certificate=certificate, key=key, token=token, plugin=plugin)


def _plugin(user: _Entry) -> Plugin:
    if user.folder is None:
        raise user.bad("it names a program to run, which is not taken from here; use a token or a client certificate")
    if not isinstance(user.body["exec"], dict):
        raise user.bad("exec should be a mapping")
    entry = _Entry(f"{user.what}: exec", user.body["exec"], user.source, user.folder)
    command, version = entry.text("command"), entry.text("apiVersion")
    if not command:
        raise entry.bad("there is no command")
    if version not in EXEC_VERSIONS:
        raise entry.bad(f"apiVersion should be one of {', '.join(EXEC_VERSIONS)}, found {version!r}")
    if entry.text("interactiveMode") == "Always":
        raise entry.bad("interactiveMode is Always, but nobody can be asked here")
    arguments, environment = entry.body.get("args") or [], entry.body.get("env") or []
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        raise entry.bad("args should be a list of texts")
    if not isinstance(environment, list) or not all(_is_variable(variable) for variable in environment):
        raise entry.bad("env should be a list of {name, value}")
    # A command with a slash counts from the file's folder, one without is looked up in PATH.
    return Plugin(
        command=str(user.folder / command) if "/" in command else command,
        api_version=version,
        arguments=tuple(arguments),
        environment=tuple((variable["name"], variable["value"]) for variable in environment),
        tell_cluster=entry.flag("provideClusterInfo"),
        hint=entry.text("installHint"),
    )


def _is_variable(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("value"), str)
