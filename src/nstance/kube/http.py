"""The client for a real API server, over HTTP.

Only a rejected credential is retried here, because only the caller knows whether a request may be repeated. A request that
changes something and gets no answer raises `UnknownOutcomeError`; `UnavailableError` means that the connection was never
made, the server rejected the request, or it was a read. The traps: a DELETE without a name deletes all objects; a line of
a watch may be as long as the largest object; and a silent stream may be dead, so it ends after a while. It may also be
healthy: an API server that has restarted sends no bookmarks of a kind until something of it changes, so silence is no
failure. (aiohttp repeats a PUT or DELETE if the connection breaks before the answer, which is safe: the version or the name
no longer match.)
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import yarl
from aiohttp.connector import AddrInfoType

from nstance.clock import Clock
from nstance.kube import errors, kinds, response_errors
from nstance.kube.credentials import Credential, Credentials
from nstance.kube.kinds import Kind
from nstance.kube.kubeconfig import Access
from nstance.kube.port import FIELD_MANAGER, Change, Listing, Object, Selection, Token

LIST_SECONDS = 120.0  # for all pages together
MAX_CONNECTIONS = 100  # each watch holds one
MAX_LINE_BYTES = 16 * 1024 * 1024  # an object has at most 1.5 MB, a little more as JSON
USER_AGENT = "nstance-operator/0.1.0"


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    kind: Kind
    body: Object | None = None
    content_type: str = "application/json"
    query: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def changes(self) -> bool:
        return self.method != "GET"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    call_seconds: float = 30.0
    connect_seconds: float = 10.0  # waiting for a free connection, TCP and TLS
    silence_seconds: float = 100.0  # bookmarks usually arrive once a minute
    page: int = 500  # objects of a list


class HttpKube:
    """Implements `port.Kube`. It may be created outside of an event loop."""

    def __init__(
        self,
        access: Access,
        clock: Clock,
        *,
        limits: HttpLimits | None = None,
        on_request: Callable[[str, str], None] = lambda method, code: None,
    ) -> None:
        """`on_request` is called once for each request with its method and the status of the answer, or `UNREACHABLE`."""
        self._access = access
        self._on_request = on_request
        self._credentials = Credentials(access, clock)
        self._limits = limits or HttpLimits()
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def get(self, kind: Kind, name: str, *, namespace: str = "") -> Object:
        return await self._call(_Request("GET", _path(kind, namespace, name), kind))

    async def list(self, kind: Kind, *, namespace: str = "", labels: str = "", fields: str = "") -> Listing:
        path, query = _path(kind, namespace), _selectors(labels, fields)
        try:
            async with asyncio.timeout(LIST_SECONDS):
                try:
                    return await self._pages(path, kind, {**query, "limit": str(self._limits.page)})
                except errors.ExpiredError:  # the list changed faster than its pages were read
                    return await self._pages(path, kind, query)
        except TimeoutError:
            raise errors.UnavailableError(f"GET {path}: the list was not complete within {LIST_SECONDS:g} s") from None

    async def _pages(self, path: str, kind: Kind, query: Mapping[str, str]) -> Listing:
        items: list[Object] = []
        version, token = "", ""
        while True:
            page = await self._call(_Request("GET", path, kind, query={**query, "continue": token} if token else query))
            metadata, more = page.get("metadata"), page.get("items") or []
            if not isinstance(metadata, dict) or not isinstance(more, list):
                raise errors.UnavailableError(f"GET {path}: expected a list, found a {page.get('kind')!r}")
            # The items of a list lack apiVersion and kind.
            items += [_with_type(kind, item) for item in more]
            version = version or str(metadata.get("resourceVersion") or "")
            token = str(metadata.get("continue") or "")
            if not token:
                return Listing(items, version)

    async def watch(
        self, selection: Selection, *, version: str, timeout: float = 300.0
    ) -> AsyncIterator[tuple[Change, Object]]:
        kind, path = selection.kind, _path(selection.kind, selection.namespace)
        call = f"watch {path}"
        query = {
            **_selectors(selection.labels, selection.fields),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, round(timeout))),
        }
        response = await self._open(_Request("GET", path, kind, query=query))
        try:
            # Reports that the stream is open before the first change.
            yield Change.BOOKMARK, _bookmark(kind, version)
            async for line in self._lines(response, call, timeout):
                yield _event(line, kind, call)
        finally:
            response.close()

    async def _lines(self, response: aiohttp.ClientResponse, call: str, timeout: float) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout + self._limits.call_seconds  # if the server does not end it
        buffer, searched = bytearray(), 0
        while (remaining := end - loop.time()) > 0:
            silence = min(remaining, self._limits.silence_seconds)
            try:
                async with asyncio.timeout(silence):
                    chunk = await response.content.readany()
            except TimeoutError:
                return  # the end, or silence: continued over another connection
            except (aiohttp.ClientError, OSError) as problem:
                raise errors.UnavailableError(f"{call}: the stream broke: {_describe(problem)}") from problem
            if not chunk:
                if buffer.strip():
                    raise errors.UnavailableError(f"{call}: the stream broke in the middle of an event")
                return
            buffer += chunk
            while (at := buffer.find(b"\n", searched)) >= 0:
                line = bytes(buffer[:at])
                del buffer[: at + 1]
                searched = 0
                if line.strip():
                    yield line
            searched = len(buffer)
            if searched > MAX_LINE_BYTES:
                raise errors.UnavailableError(f"{call}: an event has more than {MAX_LINE_BYTES} bytes")

    async def create(self, kind: Kind, body: Object, *, namespace: str = "") -> Object:
        namespace = namespace or _metadata(body).get("namespace", "")
        if kind.namespaced and not namespace:
            raise errors.InvalidError(f"expected a namespace for the new {kind.name}, found none")
        return await self._call(_Request("POST", _path(kind, namespace), kind, _with_type(kind, body)))

    async def replace(self, kind: Kind, body: Object) -> Object:
        metadata = _metadata(body)
        path = _path(kind, metadata.get("namespace", ""), metadata.get("name", ""))
        if not metadata.get("resourceVersion"):
            raise errors.InvalidError(
                f"PUT {path}: expected a resourceVersion, because it would overwrite other changes"
            )
        return await self._call(_Request("PUT", path, kind, _with_type(kind, body)))

    async def patch(self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: str = "") -> Object:
        path, query = _path(kind, namespace, name, subresource), {"fieldManager": FIELD_MANAGER}
        return await self._call(_Request("PATCH", path, kind, body, "application/merge-patch+json", query))

    async def delete(self, kind: Kind, name: str, *, namespace: str = "", uid: str = "") -> None:
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        await self._call(_Request("DELETE", _path(kind, namespace, name), kind, options | _precondition(uid)))

    async def evict(self, pod: str, *, namespace: str, uid: str = "") -> None:
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": _precondition(uid),
        }
        await self._call(_Request("POST", _path(kinds.POD, namespace, pod, "eviction"), kinds.POD, body))

    async def request_token(self, service_account: str, *, namespace: str, seconds: int) -> Token:
        path = _path(kinds.SERVICE_ACCOUNT, namespace, service_account, "token")
        body: Object = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        answer = await self._call(_Request("POST", path, kinds.SERVICE_ACCOUNT, body))
        try:
            status = answer["status"]
            return Token(str(status["token"]), datetime.fromisoformat(status["expirationTimestamp"]).timestamp())
        except (KeyError, TypeError, ValueError):
            raise errors.UnavailableError(f"POST {path}: the answer contains no token") from None

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _call(self, request: _Request) -> Object:
        response = await self._open(request)
        answer = await self._read(request, response)
        try:
            document = json.loads(answer)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            problem = f"{request}: expected a JSON object, found {len(answer)} bytes of something else"
            raise errors.UnknownOutcomeError(problem) if request.changes else errors.UnavailableError(problem)
        return document

    async def _open(self, request: _Request) -> aiohttp.ClientResponse:
        """Sends a request and checks the status of the answer. Its body is not read yet."""
        credential = await self._credentials.current()
        response = await self._send(request, credential)
        if response.status == 401:
            self._credentials.forget(credential)
            try:
                fresh = await self._credentials.current()
            except BaseException:
                response.close()
                raise
            if fresh != credential:
                response.release()
                response = await self._send(request, fresh)
        if 200 <= response.status < 300:
            return response
        answer = await self._read(request, response)
        call, changes = str(request), request.changes
        raise response_errors.from_response(
            response.status, response.headers, answer, call=call, kind=request.kind, changes=changes
        )

    async def _send(self, request: _Request, credential: Credential) -> aiohttp.ClientResponse:
        query = f"?{urlencode(request.query)}" if request.query else ""
        url = yarl.URL(f"{self._access.server}{request.path}{query}", encoded=True)
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": USER_AGENT}
        options: dict[str, Any] = {"proxy": self._access.proxy} if self._access.proxy else {}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
            options["data"] = json.dumps(request.body, separators=(",", ":")).encode()
        if credential.token:
            headers["Authorization"] = f"Bearer {credential.token}"
        if self._access.tls_server_name:
            options["server_hostname"] = self._access.tls_server_name
        context = credential.context if credential.context is not None else True
        method = "WATCH" if "watch" in request.query else request.method
        code = "UNREACHABLE"
        try:
            with _translate_errors(request, self._limits.call_seconds):
                async with asyncio.timeout(self._limits.call_seconds):
                    response = await self._open_session().request(
                        request.method, url, headers=headers, allow_redirects=False, ssl=context, **options
                    )
            code = str(response.status)
            return response
        finally:
            self._on_request(method, code)

    async def _read(self, request: _Request, response: aiohttp.ClientResponse) -> bytes:
        try:
            with _translate_errors(request, self._limits.call_seconds):
                async with asyncio.timeout(self._limits.call_seconds):
                    return await response.read()
        finally:
            response.release()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise errors.UnavailableError("the client is closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, socket_factory=_socket),
                timeout=aiohttp.ClientTimeout(total=None, connect=self._limits.connect_seconds),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _socket(address: AddrInfoType) -> socket.socket:
    """Keep-alives detect a vanished host after half a minute, even for a watch that sends nothing."""
    opened = socket.socket(*address[:3])
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return opened


@contextlib.contextmanager
def _translate_errors(request: _Request, seconds: float) -> Iterator[None]:
    """Separates what certainly did not happen from what may have happened."""
    no_answer = errors.UnknownOutcomeError if request.changes else errors.UnavailableError
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError) as problem:
        raise errors.UnavailableError(f"{request}: the server could not be reached: {_describe(problem)}") from problem
    except TimeoutError:
        raise no_answer(f"{request}: no complete answer within {seconds:g} s") from None
    except (aiohttp.ClientError, OSError) as problem:
        raise no_answer(f"{request}: the connection broke: {_describe(problem)}") from problem


def _describe(problem: BaseException) -> str:
    return str(problem) or type(problem).__name__


def _path(kind: Kind, namespace: str, name: str | None = None, subresource: str = "") -> str:
    """No name (None) means all objects. An empty name is rejected, because it would mean the same."""
    if name is not None and (not name or name in (".", "..")):
        raise errors.InvalidError(f"a {kind.name} cannot have the name {name!r}")
    if name is not None and kind.namespaced and not namespace:
        raise errors.InvalidError(f"expected a namespace for the {kind.name} {name!r}, found none")
    if namespace in (".", ".."):
        raise errors.InvalidError(f"a namespace cannot have the name {namespace!r}")
    return kind.path(quote(namespace, safe=""), quote(name or "", safe=""), subresource)


def _selectors(labels: str, fields: str) -> dict[str, str]:
    return {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}


def _metadata(body: Object) -> Object:
    metadata = body.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _precondition(uid: str) -> Object:
    return {"preconditions": {"uid": uid}} if uid else {}


def _with_type(kind: Kind, body: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.name, **body}


def _bookmark(kind: Kind, version: str) -> Object:
    return _with_type(kind, {"metadata": {"resourceVersion": version}})


def _event(line: bytes, kind: Kind, call: str) -> tuple[Change, Object]:
    try:
        event = json.loads(line)
        change, item = event["type"], event["object"]
        if change == "ERROR":
            raise response_errors.from_watch_error(item, call=call)
        item["metadata"]["resourceVersion"]
        return Change(change), _with_type(kind, item)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise errors.UnavailableError(
            f"{call}: expected a watch event, found {len(line)} bytes of something else"
        ) from None
