"""An agent in this process against a real server over real TLS."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from component.agent_server import AgentServer
from nstance.agent import lifecycle, settings, stop_reason
from nstance.clock import SystemClock, SystemRng
from nstance.model.ids import InstanceId
from nstance.telemetry.tracing import Tracing
from support import ports


class QuickChance(SystemRng):
    """Waits as short as they may be, but never so short that a loop spins."""

    def uniform(self, low: float, high: float) -> float:
        return min(high, low + 0.01)


class Agent:
    waits = settings.WAITS

    def __init__(self, home: Path, environment: dict[str, str], tracing: Tracing | None = None) -> None:
        self.home = home
        self._tracing = tracing
        self.environment = environment
        self._stop, self.going_down = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def identity(self) -> Path:
        return self.home / "identity"

    @property
    def recv(self) -> Path:
        return self.home / "recv"

    def received(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.recv.iterdir()} if self.recv.exists() else {}

    def start(self, **more: str) -> None:
        self._stop, self.going_down = asyncio.Event(), asyncio.Event()
        given = replace(settings.read(self.environment | more), waits=self.waits)
        self._task = asyncio.create_task(
            lifecycle.run_until(
                given,
                stop=self._stop,
                going_down=self.going_down,
                clock=SystemClock(),
                rng=QuickChance(),
                tracing=self._tracing,
            )
        )

    async def stop(self) -> None:
        """As SIGTERM does. Raises what ended the agent, if something did."""
        self._stop.set()
        if self._task is not None:
            task, self._task = self._task, None
            await asyncio.wait_for(task, 60)

    async def crash(self) -> None:
        assert self._task is not None
        task, self._task = self._task, None
        task.cancel()
        await asyncio.wait({task})

    @property
    def ended(self) -> bool:
        return self._task is None or self._task.done()


@pytest.fixture
async def server() -> AsyncIterator[AgentServer]:
    async with AgentServer().running() as running:
        yield running


@pytest.fixture
def instance(server: AgentServer) -> InstanceId:
    return server.new_instance()


@pytest.fixture
async def agent(server: AgentServer, instance: InstanceId, tmp_path: Path) -> AsyncIterator[Agent]:
    made = Agent(tmp_path / "home", server.prepare(tmp_path / "home", instance))
    yield made
    await made.stop()


@pytest.fixture(autouse=True)
def system_state(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The system state that systemd reports in this test."""
    states: list[str | None] = ["running"]

    async def state() -> str | None:
        return states[0]

    monkeypatch.setattr(stop_reason, "_system_state", state)
    return states


free_port = ports.free_port


async def get(port: int, path: str, *, method: str = "GET") -> tuple[str, str]:
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return head.split("\r\n")[0].removeprefix("HTTP/1.1 "), body
