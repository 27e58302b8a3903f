"""The door to a real API server, over HTTP.

Nothing is retried here except a refused credential: the caller knows what a repetition would mean. After a request that
changes something was sent, no answer means `Unknown`; `Unavailable` is said only if the connection was never made, the
server refused, or the request was a read. The traps: a DELETE without a name deletes them all; a watch's line may be as
long as the largest object; and a stream that is silent may be dead, so bookmarks are asked for and missed. (aiohttp sends
a PUT or DELETE again if the connection breaks before an answer. Both are safe: the first one's version or name is gone.)
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import yarl
from aiohttp.connector import AddrInfoType

from nstance.clock import Clock
from nstance.kube import answers, errors, kinds
from nstance.kube.credentials import Credentials, Proof
from nstance.kube.kinds import Kind
from nstance.kube.kubeconfig import Access
from nstance.kube.port import Change, Listing, Object, Operations, Patch, Token

CONNECT_SECONDS = 10.0  # to a free connection: waiting for one, TCP and TLS
CALL_SECONDS = 30.0
LIST_SECONDS = 120.0  # for all pages together
SILENCE_SECONDS = 100.0  # bookmarks come about once a minute
PAGE = 500
CONNECTIONS = 100  # each watch holds one
LARGEST_LINE = 16 * 1024 * 1024  # an object has at most 1.5 MB, a little more as JSON
USER_AGENT = "nstance-operator/0.1.0"


class HttpKube:
    """An implementation of `port.Kube`. Made outside of an event loop or in it; used in one."""

    def __init__(
        self,
        access: Access,
        clock: Clock,
        *,
        user_agent: str = USER_AGENT,
        call_seconds: float = CALL_SECONDS,
        connect_seconds: float = CONNECT_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
        page: int = PAGE,
    ) -> None:
        self._access = access
        self._credentials = Credentials(access, clock)
        self._user_agent = user_agent
        self._call_seconds = call_seconds
        self._connect_seconds = connect_seconds
        self._silence_seconds = silence_seconds
        self._page = page
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    # ---- reading

    async def get(self, kind: Kind, name: str, *, namespace: str = "") -> Object:
        return await self._call("GET", _path(kind, namespace, name), kind)

    async def list(self, kind: Kind, *, namespace: str = "", labels: str = "", fields: str = "") -> Listing:
        path, query = _path(kind, namespace), _selectors(labels, fields)
        try:
            async with asyncio.timeout(LIST_SECONDS):
                try:
                    return await self._pages(path, kind, {**query, "limit": str(self._page)})
                except errors.ExpiredError:  # the list changed faster than we turned pages
                    return await self._pages(path, kind, query)
        except TimeoutError:
            raise errors.UnavailableError(f"GET {path}: not all was read within {LIST_SECONDS:g} s") from None

    async def _pages(self, path: str, kind: Kind, query: Mapping[str, str]) -> Listing:
        items: list[Object] = []
        version, token = "", ""
        while True:
            page = await self._call("GET", path, kind, query={**query, "continue": token} if token else query)
            metadata, more = page.get("metadata"), page.get("items") or []
            if not isinstance(metadata, dict) or not isinstance(more, list):
                raise errors.UnavailableError(f"GET {path}: expected a list, found a {page.get('kind')!r}")
            # The items of a list do not say what they are.
            items += [_typed(kind, item) for item in more]
            version = version or str(metadata.get("resourceVersion") or "")
            token = str(metadata.get("continue") or "")
            if not token:
                return Listing(items, version)

    async def watch(
        self,
        kind: Kind,
        *,
        version: str,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        timeout: float = 300.0,
    ) -> AsyncIterator[tuple[Change, Object]]:
        path = _path(kind, namespace)
        call = f"watch {path}"
        query = {
            **_selectors(labels, fields),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, round(timeout))),
        }
        response = await self._open("GET", path, kind, query=query)
        try:
            # The stream is open: whoever waits for that need not wait for the first change.
            yield Change.BOOKMARK, _bookmark(kind, version)
            async for line in self._lines(response, call, timeout):
                yield _event(line, kind, call)
        finally:
            response.close()

    async def _lines(self, response: aiohttp.ClientResponse, call: str, timeout: float) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout + self._call_seconds  # a server that forgets to end it
        waiting, searched = bytearray(), 0
        while (left := end - loop.time()) > 0:
            silent = min(left, self._silence_seconds)
            try:
                async with asyncio.timeout(silent):
                    chunk = await response.content.readany()
            except TimeoutError:
                if silent == left:
                    return
                raise errors.UnavailableError(f"{call}: silent for {silent:g} s, not even a bookmark came") from None
            except (aiohttp.ClientError, OSError) as problem:
                raise errors.UnavailableError(f"{call}: the stream broke: {_said(problem)}") from problem
            if not chunk:
                if waiting.strip():
                    raise errors.UnavailableError(f"{call}: the stream broke in the middle of an event")
                return
            waiting += chunk
            while (at := waiting.find(b"\n", searched)) >= 0:
                line = bytes(waiting[:at])
                del waiting[: at + 1]
                searched = 0
                if line.strip():
                    yield line
            searched = len(waiting)
            if searched > LARGEST_LINE:
                raise errors.UnavailableError(f"{call}: an event has more than {LARGEST_LINE} bytes")

    # ---- changing

    async def create(self, kind: Kind, body: Object, *, namespace: str = "") -> Object:
        namespace = namespace or _metadata(body).get("namespace", "")
        if kind.namespaced and not namespace:
            raise errors.InvalidError(f"a {kind.name} is created in a namespace, found none")
        body = _typed(kind, body)
        return await self._call("POST", _path(kind, namespace), kind, body=body)

    async def replace(self, kind: Kind, body: Object, *, subresource: str = "") -> Object:
        metadata = _metadata(body)
        path = _path(kind, metadata.get("namespace", ""), metadata.get("name", ""), subresource)
        if not metadata.get("resourceVersion"):
            raise errors.InvalidError(
                f"PUT {path}: without the resourceVersion it was read at, it would overwrite others"
            )
        return await self._call("PUT", path, kind, body=_typed(kind, body, subresource))

    async def patch(
        self,
        kind: Kind,
        name: str,
        body: Object | Operations,
        *,
        namespace: str = "",
        how: Patch = Patch.MERGE,
        subresource: str = "",
        field_manager: str = "",
    ) -> Object:
        query = {"fieldManager": field_manager} if field_manager else {}
        if how is Patch.APPLY:  # two controllers that own one field would otherwise stop each other for ever
            query = {"fieldManager": field_manager or "nstance-operator", "force": "true"}
            if isinstance(body, dict):
                body = _typed(kind, body, subresource)
        path = _path(kind, namespace, name, subresource)
        return await self._call("PATCH", path, kind, body=body, content=how.value, query=query)

    async def delete(
        self, kind: Kind, name: str, *, namespace: str = "", uid: str = "", version: str = "", foreground: bool = False
    ) -> None:
        conditions = {key: value for key, value in (("uid", uid), ("resourceVersion", version)) if value}
        options: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground" if foreground else "Background",
        }
        if conditions:
            options["preconditions"] = conditions
        await self._call("DELETE", _path(kind, namespace, name), kind, body=options)

    async def evict(self, pod: str, *, namespace: str, uid: str = "", grace: int | None = None) -> None:
        options: Object = {}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": options,
        }
        await self._call("POST", _path(kinds.POD, namespace, pod, "eviction"), kinds.POD, body=body)

    async def request_token(self, service_account: str, *, namespace: str, seconds: int) -> Token:
        path = _path(kinds.SERVICE_ACCOUNT, namespace, service_account, "token")
        body: Object = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        answer = await self._call("POST", path, kinds.SERVICE_ACCOUNT, body=body)
        try:
            status = answer["status"]
            return Token(str(status["token"]), datetime.fromisoformat(status["expirationTimestamp"]).timestamp())
        except (KeyError, TypeError, ValueError):
            raise errors.UnavailableError(f"POST {path}: the answer holds no token") from None

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()

    # ---- HTTP

    async def _call(
        self,
        method: str,
        path: str,
        kind: Kind,
        *,
        body: Object | Operations | None = None,
        content: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Object:
        call, changes = f"{method} {path}", method != "GET"
        response = await self._open(method, path, kind, body=body, content=content, query=query)
        try:
            with _lost(call, self._call_seconds, changes=changes):
                async with asyncio.timeout(self._call_seconds):
                    answer = await response.read()
        finally:
            response.release()
        try:
            read = json.loads(answer)
        except (ValueError, RecursionError):
            read = None
        if not isinstance(read, dict):
            problem = f"{call}: expected a JSON object, found {len(answer)} bytes of something else"
            raise errors.UnknownOutcomeError(problem) if changes else errors.UnavailableError(problem)
        return read

    async def _open(
        self,
        method: str,
        path: str,
        kind: Kind,
        *,
        body: Object | Operations | None = None,
        content: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        """The answer's head was read and says that all is well; its body comes."""
        url = f"{self._access.server}{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        call, changes = f"{method} {path}", method != "GET"
        proof = await self._credentials.current()
        response = await self._send(call, method, url, data, content, proof, changes=changes)
        if response.status == 401:
            self._credentials.forget(proof)
            try:
                fresh = await self._credentials.current()
            except BaseException:
                response.close()
                raise
            if fresh != proof:
                response.release()
                response = await self._send(call, method, url, data, content, fresh, changes=changes)
        if 200 <= response.status < 300:
            return response
        try:
            with _lost(call, self._call_seconds, changes=changes):
                async with asyncio.timeout(self._call_seconds):
                    said = await response.read()
        finally:
            response.release()
        raise answers.failure(response.status, response.headers, said, call=call, kind=kind, changes=changes)

    async def _send(
        self, call: str, method: str, url: str, data: bytes | None, content: str, proof: Proof, *, changes: bool
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": self._user_agent}
        if data is not None:
            headers["Content-Type"] = content
        if proof.token:
            headers["Authorization"] = f"Bearer {proof.token}"
        options: dict[str, Any] = {"proxy": self._access.proxy} if self._access.proxy else {}
        if self._access.tls_server_name:
            options["server_hostname"] = self._access.tls_server_name
        with _lost(call, self._call_seconds, changes=changes):
            async with asyncio.timeout(self._call_seconds):
                return await self._opened().request(
                    method,
                    yarl.URL(url, encoded=True),
                    data=data,
                    headers=headers,
                    allow_redirects=False,
                    ssl=proof.context if proof.context is not None else True,
                    **options,
                )

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise errors.UnavailableError("the client was closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS, socket_factory=_socket),
                timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_seconds),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _socket(address: AddrInfoType) -> socket.socket:
    """A host that vanished is noticed after half a minute, also by a watch that has nothing to send."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made


@contextlib.contextmanager
def _lost(call: str, seconds: float, *, changes: bool) -> Iterator[None]:
    """Tells what surely did not happen from what may have."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError) as problem:
        raise errors.UnavailableError(f"{call}: the server cannot be reached: {_said(problem)}") from problem
    except TimeoutError:
        text = f"{call}: no whole answer within {seconds:g} s"
        raise (errors.UnknownOutcomeError(text) if changes else errors.UnavailableError(text)) from None
    except (aiohttp.ClientError, OSError) as problem:
        text = f"{call}: the connection broke: {_said(problem)}"
        raise (errors.UnknownOutcomeError(text) if changes else errors.UnavailableError(text)) from problem


def _said(problem: BaseException) -> str:
    return str(problem) or type(problem).__name__


def _path(kind: Kind, namespace: str, name: str | None = None, subresource: str = "") -> str:
    """Without a name only where all of them are meant: an empty one would silently mean the same."""
    if name is not None and (not name or name in (".", "..")):
        raise errors.InvalidError(f"a {kind.name} cannot have the name {name!r}")
    if name is not None and kind.namespaced and not namespace:
        raise errors.InvalidError(f"a {kind.name} lives in a namespace, found none for {name!r}")
    if namespace in (".", ".."):
        raise errors.InvalidError(f"there is no namespace {namespace!r}")
    return kind.path(quote(namespace, safe=""), quote(name or "", safe=""), subresource)


def _selectors(labels: str, fields: str) -> dict[str, str]:
    return {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}


def _metadata(body: Object) -> Object:
    metadata = body.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _typed(kind: Kind, body: Object, subresource: str = "") -> Object:
    if subresource == "scale":  # the same for all that have it
        return {"apiVersion": "autoscaling/v1", "kind": "Scale", **body}
    return {"apiVersion": kind.api_version, "kind": kind.name, **body}


def _bookmark(kind: Kind, version: str) -> Object:
    return _typed(kind, {"metadata": {"resourceVersion": version}})


def _event(line: bytes, kind: Kind, call: str) -> tuple[Change, Object]:
    try:
        event = json.loads(line)
        what, about = event["type"], event["object"]
        if what == "ERROR":
            raise answers.ended(about, call=call)
        about["metadata"]["resourceVersion"]
        return Change(what), _typed(kind, about)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise errors.UnavailableError(
            f"{call}: expected a watch event, found {len(line)} bytes of something else"
        ) from None
