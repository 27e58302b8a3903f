"""A child that exits is reported and restarted; new code restarts it; no process of an earlier run is left."""

import io
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from nstance.clock import SystemClock
from nstance.dev import leftovers
from nstance.dev.child import Child
from nstance.dev.screen import Screen
from nstance.dev.supervisor import Supervisor
from nstance.providers import processes
from support.eventually import eventually
from support.hand_clock import HandClock

CODE = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder, self.pids = folder, folder / "pids"
        self.sources = folder / "sources"
        self.sources.mkdir()
        self.out = io.StringIO()
        self.child = self.make()
        self.clock = HandClock()
        self.supervisor = Supervisor([self.child], Screen(self.out, SystemClock(), timed=False), self.clock)

    def make(self) -> Child:
        command = [sys.executable, "-I", "-S", "-c", CODE]
        return Child("server", command, os.environ, temp=self.folder, cwd=self.folder, clock=SystemClock())

    async def until(self, holds: Callable[[], bool]) -> None:
        async def polled() -> bool:
            await self.supervisor.poll()
            return holds()

        await eventually(polled, interval=0.02)

    def has_printed(self, text: str) -> bool:
        return text in self.out.getvalue()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    await made.supervisor.start()
    yield made
    await made.supervisor.stop()


async def test_a_killed_child_is_reported_and_restarted(scene: Scene) -> None:
    first = scene.child.pid
    os.kill(first, signal.SIGKILL)
    await scene.until(lambda: scene.has_printed(f"server (pid {first}) was ended by SIGKILL; it restarts in 5 s"))
    scene.clock.now += 5.1
    await scene.until(lambda: scene.has_printed("server restarted"))
    assert scene.child.pid != first
    assert scene.child.exit_code is None
    assert scene.out.getvalue().count("ended by") == 1


async def test_new_code_restarts_it(scene: Scene) -> None:
    first = scene.child.pid
    async with scene.supervisor.reloading(scene.sources):
        number = 0

        def save() -> bool:
            nonlocal number
            number += 1
            (scene.sources / f"new_{number % 5}.py").write_text(f"x = {number}\n")
            return scene.child.pid != first

        await scene.until(save)
    assert scene.has_printed("code changed: restarting server")
    assert not scene.has_printed("ended by")


async def test_an_orphan_of_a_killed_supervisor_is_stopped_by_the_next_one(scene: Scene) -> None:
    orphan = leftovers._recorded(scene.pids / "server.json")
    assert orphan is not None
    assert processes.is_running(orphan)
    second = scene.make()
    await second.start()
    try:
        assert not processes.is_running(orphan)
        assert second.exit_code is None
        assert leftovers.end_servers(scene.pids) == ["server"]  # as `make clean-dev` does
    finally:
        await second.stop()
