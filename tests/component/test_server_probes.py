"""The plain port, asked by a real client and abused by raw sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest

from component.wire_world import SECONDS, on_both_loops
from nstance.model.decision import ReasonCode
from nstance.server.probes import Probes
from nstance.telemetry.metrics import Metrics
from nstance.wire.http_listener import LIMITS, Limits
from support.eventually import eventually


class Well:
    reason: str | None = None

    def __call__(self) -> str | None:
        return self.reason


@asynccontextmanager
async def probing(
    well: Well | None = None, metrics: Metrics | None = None, limits: Limits = LIMITS
) -> AsyncIterator[Probes]:
    probes = Probes(health_problem=well or Well(), metrics=metrics or Metrics(), limits=limits)
    await probes.listener.start("127.0.0.1", 0)
    try:
        yield probes
    finally:
        await probes.listener.close()


async def ask(probes: Probes, path: str, method: str = "GET") -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{probes.listener.port}{path}") as response,
    ):
        return response.status, await response.text(), response.headers["Content-Type"]


@on_both_loops
async def test_health_says_ok_or_why_not() -> None:
    well = Well()
    async with probing(well) as probes:
        for path in ("/", "/health"):
            assert (await ask(probes, path))[:2] == (200, "ok")
        well.reason = "the configuration cannot be loaded: groups.web.size: expected a number\nsecond line"
        for path in ("/", "/health"):
            assert (await ask(probes, path))[:2] == (503, well.reason)
        well.reason = None
        assert (await ask(probes, "/health"))[:2] == (200, "ok")
        assert (await ask(probes, "/health", "HEAD"))[:2] == (200, "")


async def test_metrics_are_what_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.decided(ReasonCode.SCALE_UP)
    async with probing(metrics=metrics) as probes:
        status, text, kind = await ask(probes, "/metrics")
    assert status == 200
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert 'nstance_decisions_total{reason="scale-up"} 1.0' in text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 404),
        ("GET", "/debug/pprof", 404),
        ("GET", "/health/leadership/shard", 404),
        ("GET", "//health", 404),
        ("GET", "/health/../metrics/x", 404),
        ("POST", "/health", 405),
        ("DELETE", "/metrics", 405),
    ],
)
async def test_nothing_else_is_served(method: str, path: str, status: int) -> None:
    async with probing() as probes:
        reader, writer = await asyncio.open_connection("127.0.0.1", probes.listener.port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with asyncio.timeout(SECONDS):
            answer = await reader.read()
        writer.close()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"Traceback" not in answer


async def test_a_question_that_cannot_be_answered_is_an_error_and_no_crash(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Well):
        def __call__(self) -> str | None:
            raise RuntimeError("broken")

    async with probing(Broken()) as probes:
        assert (await ask(probes, "/health"))[:2] == (500, "internal error")
        assert (await ask(probes, "/metrics"))[0] == 200
    assert "failed to answer a request" in caplog.text


SLOW = {
    "nothing is sent": b"",
    "half a head": b"GET /health HTTP/1.1\r\nHost: x\r\n",
    "a body that does not come": b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00",
    "a head without end": b"GET /health HTTP/1.1\r\nX: " + b"x" * 100_000,
}


@pytest.mark.parametrize("sent", SLOW.values(), ids=list(SLOW))
@on_both_loops
async def test_a_slow_client_is_cut_off(sent: bytes) -> None:
    async with probing(limits=Limits(request_seconds=0.3)) as probes:
        reader, writer = await asyncio.open_connection("127.0.0.1", probes.listener.port)
        writer.write(sent)
        with suppress(ConnectionError):
            async with asyncio.timeout(SECONDS):
                await reader.read()
        writer.close()
        await eventually(lambda: not probes.listener._per_address, "the connection's end")


async def test_a_client_that_never_reads_is_cut_off() -> None:
    class Huge(Metrics):
        def render(self) -> bytes:
            return b"x" * (64 << 20)

    async with probing(metrics=Huge(), limits=Limits(request_seconds=1.0)) as probes:
        _, writer = await asyncio.open_connection("127.0.0.1", probes.listener.port, limit=1024)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(lambda: probes.listener._per_address.total() == 1)
        await eventually(lambda: not probes.listener._per_address, "the connection's end")
        writer.transport.abort()


@on_both_loops
async def test_who_has_waited_longest_makes_room() -> None:
    """Idle connections took all places, and health and leadership were answered to nobody."""
    async with probing(limits=Limits(connections=2)) as probes:
        first, second = [await asyncio.open_connection("127.0.0.1", probes.listener.port) for _ in range(2)]
        await eventually(lambda: probes.listener._per_address.total() == 2)
        assert (await ask(probes, "/health"))[0] == 200
        async with asyncio.timeout(SECONDS):
            with suppress(ConnectionError):
                assert await first[0].read() == b""
        second[1].write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            assert (await second[0].read()).startswith(b"HTTP/1.1 200")
        for _, writer in (first, second):
            writer.transport.abort()
        await eventually(lambda: not probes.listener._per_address and not probes.listener._waiting)


async def test_many_idle_connections_keep_nobody_out() -> None:
    async with probing(limits=Limits(connections=20)) as probes:
        idle = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", probes.listener.port) for _ in range(200)))
        for _ in range(5):
            assert (await ask(probes, "/health"))[0] == 200
        assert probes.listener._per_address.total() <= 21
        for _, writer in idle:
            writer.transport.abort()


@on_both_loops
async def test_closing_ends_open_connections_and_frees_the_port() -> None:
    async with probing() as probes:
        port = probes.listener.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await eventually(lambda: probes.listener._per_address.total() == 1)
    async with asyncio.timeout(SECONDS):
        with suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    again = Probes(health_problem=Well(), metrics=Metrics())
    await again.listener.start("127.0.0.1", port)
    await again.listener.close()


async def test_a_taken_port_is_an_error() -> None:
    async with probing() as probes:
        with pytest.raises(OSError, match=r"(?i)address"):
            await Probes(health_problem=Well(), metrics=Metrics()).listener.start("127.0.0.1", probes.listener.port)
