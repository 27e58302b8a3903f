"""`GET /healthz`, and the word to systemd: green once the instance has its identity, red with the reason before.

A server that cannot be reached does not turn it red: a leader's failover must not make a load balancer or a watchdog
take healthy machines away.
"""

import asyncio
import contextlib
import os
import socket

from nstance.agent.settings import Address

REQUEST_SECONDS = 5.0
MAX_REQUEST = 4096
MAX_CONNECTIONS = 32


class Light:
    """Red with a reason, or green."""

    def __init__(self) -> None:
        self.problem: str | None = "not registered yet"

    def green(self) -> None:
        self.problem = None
        tell_systemd("STATUS=registered")

    def red(self, problem: str) -> None:
        self.problem = problem
        tell_systemd(f"STATUS={problem}")


async def serve(address: Address, light: Light) -> asyncio.Server:
    """Raises OSError if the address cannot be bound."""
    busy = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal busy
        busy += 1
        try:
            if busy <= MAX_CONNECTIONS:
                async with asyncio.timeout(REQUEST_SECONDS):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_response(request, light.problem))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that asks nothing in time gets no answer
        finally:
            busy -= 1
            writer.close()

    return await asyncio.start_server(answer, address.host or None, address.port, limit=MAX_REQUEST)


def _response(request: bytes, problem: str | None) -> bytes:
    words = request.split(b"\r\n", 1)[0].split(b" ")
    if words[0] not in (b"GET", b"HEAD"):
        status, body = "405 Method Not Allowed", "only GET\n"
    elif len(words) < 2 or words[1].partition(b"?")[0] != b"/healthz":
        status, body = "404 Not Found", "only /healthz\n"
    elif problem is not None:
        status, body = "503 Service Unavailable", f"{problem}\n"
    else:
        status, body = "200 OK", "ok"
    content = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + (b"" if words[0] == b"HEAD" else content)


def tell_systemd(message: str) -> None:
    """One datagram to the service manager, if there is one that listens."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(message.encode(), "\0" + path[1:] if path.startswith("@") else path)
