"""`GET /healthz`, `GET /metrics` and the status for systemd: healthy once the instance has its identity, else with the reason.

An unreachable server does not make the agent unhealthy: a failover must not cause a load balancer or a watchdog to take
healthy machines away.
"""

import asyncio
import contextlib
import os
import socket

from nstance.agent.metrics import CONTENT_TYPE, AgentMetrics
from nstance.agent.settings import Address

REQUEST_TIMEOUT_SECONDS = 5.0
MAX_REQUEST_BYTES = 4096
MAX_CONNECTIONS = 32


class HealthStatus:
    def __init__(self, metrics: AgentMetrics | None = None) -> None:
        self.problem: str | None = "not registered yet"
        self.metrics = metrics or AgentMetrics()

    def set_healthy(self) -> None:
        self.problem = None
        self.metrics.registered = True
        notify_systemd("STATUS=registered")

    def set_unhealthy(self, problem: str) -> None:
        self.problem = problem
        notify_systemd(f"STATUS={problem}")


async def serve(address: Address, health: HealthStatus) -> asyncio.Server:
    """Raises OSError if the address cannot be bound."""
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            if connections <= MAX_CONNECTIONS:
                async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_response(request, health))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that sends no request in time gets no answer
        finally:
            connections -= 1
            writer.close()

    return await asyncio.start_server(answer, address.host or None, address.port, limit=MAX_REQUEST_BYTES)


def _response(request: bytes, health: HealthStatus) -> bytes:
    words = request.split(b"\r\n", 1)[0].split(b" ")
    path, kind = words[1].partition(b"?")[0] if len(words) > 1 else b"", "text/plain; charset=utf-8"
    if words[0] not in (b"GET", b"HEAD"):
        status, body = "405 Method Not Allowed", "only GET\n"
    elif path == b"/metrics":
        status, body, kind = "200 OK", health.metrics.render(), CONTENT_TYPE
    elif path != b"/healthz":
        status, body = "404 Not Found", "only /healthz and /metrics\n"
    elif health.problem is not None:
        status, body = "503 Service Unavailable", f"{health.problem}\n"
    else:
        status, body = "200 OK", "ok"
    content = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + (b"" if words[0] == b"HEAD" else content)


def notify_systemd(message: str) -> None:
    """One datagram to the service manager, if there is one."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(message.encode(), "\0" + path[1:] if path.startswith("@") else path)
