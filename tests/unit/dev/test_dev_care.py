"""A child that ends is said to have ended and started again; new code starts it anew; no former one is left."""

import asyncio
import io
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from nstance.clock import SystemClock
from nstance.dev import leftovers, supervisor
from nstance.dev.child import Child
from nstance.dev.screen import Screen
from nstance.dev.supervisor import Supervisor
from nstance.providers import processes

CODE = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder, self.pids = folder, folder / "pids"
        self.sources = folder / "sources"
        self.sources.mkdir()
        self.out = io.StringIO()
        self.child = self.make()
        self.care = Supervisor([self.child], Screen(self.out, SystemClock(), timed=False), SystemClock())

    def make(self) -> Child:
        return Child(
            "server",
            command=[sys.executable, "-I", "-S", "-c", CODE],
            environment={**os.environ, "NSTANCE_DEV": str(self.pids)},
            folder=self.folder,
            log=self.folder / "server.log",
            pids=self.pids,
            clock=SystemClock(),
        )

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                await self.care.look()
                await asyncio.sleep(0.02)

    def said(self, text: str) -> bool:
        return text in self.out.getvalue()


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(supervisor, "RESTART", 0.3)
    made = Scene(tmp_path)
    await made.care.start()
    yield made
    await made.care.stop()


async def test_a_killed_child_is_said_and_started_again(scene: Scene) -> None:
    first = scene.child.pid
    os.kill(first, signal.SIGKILL)
    await scene.until(lambda: scene.said(f"server (pid {first}) ended by SIGKILL; it is started again in 0.3 s"))
    await scene.until(lambda: scene.said("server started again"))
    assert scene.child.pid != first
    assert scene.child.code is None
    assert scene.out.getvalue().count("ended by") == 1


async def test_new_code_starts_it_anew(scene: Scene) -> None:
    first = scene.child.pid
    async with scene.care.watching(scene.sources):
        number = 0

        def save() -> bool:
            nonlocal number
            number += 1
            (scene.sources / f"new_{number % 5}.py").write_text(f"x = {number}\n")
            return scene.child.pid != first

        await scene.until(save)
    assert scene.said("the code changed: server starts anew")
    assert not scene.said("ended by")


async def test_an_orphan_of_a_killed_keeper_is_ended_by_the_next_one(scene: Scene) -> None:
    orphan = leftovers._recorded(scene.pids / "server.json")
    assert orphan is not None
    assert processes.is_running(orphan)
    second = scene.make()
    await second.start()
    try:
        assert not processes.is_running(orphan)
        assert second.code is None
        assert leftovers.end_servers(scene.pids) == ["server"]  # as `make clean-dev` does
    finally:
        await second.stop()
