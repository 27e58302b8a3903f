"""One run of a readiness check. Any error makes the check fail with a reason, never the agent.

All checks are local: ports on loopback, IPv4 first. TLS certificates are not verified, because a service's certificate is
usually for another name than localhost.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from nstance.agent import commands
from nstance.agent.version import VERSION
from nstance.v1 import agent_pb2
from nstance.wire import peer as connections

LOOPBACK = ("127.0.0.1", "::1")
MAX_STATUS_LINE = 4096
MAX_TIMEOUT_SECONDS = 300.0
MAX_MESSAGE = 500


async def probe(check: agent_pb2.Check) -> str:
    """Returns why the check fails, in at most MAX_MESSAGE characters; empty if it passes."""
    seconds = min(max(check.timeout_ms, 1) / 1000, MAX_TIMEOUT_SECONDS)
    try:
        async with asyncio.timeout(seconds):
            problem = await _probe(check, seconds)
    except TimeoutError:
        problem = f"no answer within {seconds:g} s"
    except Exception as error:
        # An unexpected error fails this check, not the agent.
        problem = f"{type(error).__name__}: {error}"
    return problem[:MAX_MESSAGE]


async def _probe(check: agent_pb2.Check, seconds: float) -> str:
    match check.WhichOneof("kind"):
        case "http":
            return await _http(check.http)
        case "tcp":
            try:
                async with _connected(check.tcp.port):
                    return ""
            except OSError as error:
                return _explained(error)
        case "command":
            output = commands.Output()
            # The command's own deadline is earlier, so that it is killed and not only abandoned.
            problem = await commands.run(check.command.argv, seconds=0.95 * seconds, output=output, configured=seconds)
            return f"{problem}: {output.last_line}" if problem and output.last_line else problem
        case "systemd":
            return await _systemd(check.systemd.unit, seconds)
        case _:
            return f"agent version {VERSION} does not support this kind of check"


async def _http(check: agent_pb2.HttpCheck) -> str:
    scheme = "https" if check.tls else "http"
    request = (
        f"GET {check.path or '/'} HTTP/1.1\r\nHost: localhost:{check.port}\r\n"
        f"User-Agent: nstance-agent/{VERSION}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )
    try:
        async with _connected(check.port, tls=check.tls) as (reader, writer):
            writer.write(request.encode())
            await writer.drain()
            line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError:
        return f"{scheme}: the connection was closed without an answer"
    except asyncio.LimitOverrunError:
        return f"{scheme}: expected an HTTP answer, found something else"
    except OSError as error:
        return f"{scheme}: {_explained(error)}"
    words = line.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return f"{scheme}: expected an HTTP answer, found something else"
    code = int(words[1][:5])
    return "" if 200 <= code < 400 else f"{scheme}: answered {code}"


async def _systemd(unit: str, seconds: float) -> str:
    output = commands.Output()
    problem = await commands.run(
        ("systemctl", "is-active", "--", unit), seconds=0.95 * seconds, output=output, configured=seconds
    )
    if not problem:
        return ""
    if problem.startswith("cannot be run"):
        return f"systemctl {problem}: this machine has no systemd"
    return f"unit {unit} is not active: {output.last_line or problem}"


@contextlib.asynccontextmanager
async def _connected(
    port: int, *, tls: bool = False
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Raises the OSError of the IPv4 attempt."""
    context = _unverified() if tls else None
    refusal: OSError | None = None
    for host in LOOPBACK:
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=context, limit=MAX_STATUS_LINE)
        except OSError as error:
            refusal = refusal or error
            continue
        if writer.get_extra_info("sockname") != writer.get_extra_info("peername"):
            break
        connections.cut(writer.transport)  # without a listener the kernel may connect a port to itself
        refusal = refusal or ConnectionRefusedError()
    else:
        assert refusal is not None
        raise refusal
    try:
        yield reader, writer
    finally:
        connections.cut(writer.transport)


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _explained(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return error.strerror or str(error) or type(error).__name__
