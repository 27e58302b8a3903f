"""Stopping the preparation of the operator at any time."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from nstance.clock import Clock
from nstance.dev import child, operator
from nstance.dev.errors import DevError
from nstance.dev.screen import Screen
from support.eventually import eventually
from support.hand_clock import rest

SECONDS = 20.0


def plan(dir: Path) -> operator.Options:
    return operator.read_options({"NSTANCE_DEV_TEMP": str(dir)}, only=False)


@pytest.fixture
def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nstance-admin that never answers; the file has its process ID once it runs."""
    program, pid = tmp_path / "admin", tmp_path / "pid"
    program.write_text(f'#!/bin/sh\necho $$ > "{pid}.new" && mv "{pid}.new" "{pid}"\nexec sleep 600\n')
    program.chmod(0o755)
    monkeypatch.setattr(child, "program_path", lambda name: str(program))
    return pid


def alive(pid: Path) -> bool:
    try:
        os.kill(int(pid.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


async def started(pid: Path) -> None:
    await eventually(lambda: os.access(pid, os.R_OK))


async def test_an_admin_tool_that_hangs_is_given_up_and_ended(
    tmp_path: Path, admin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = asyncio.create_task(child.run_admin("cluster", "nonce", environment=os.environ, timeout=1.0))
    await started(admin)
    async with asyncio.timeout(SECONDS):
        with pytest.raises(DevError, match="nstance-admin cluster nonce did not end within 1 s"):
            await asking
    assert not alive(admin)


async def test_an_admin_tool_does_not_outlive_its_caller(tmp_path: Path, admin: Path) -> None:
    asking = asyncio.create_task(child.run_admin("cluster", "nonce", environment=os.environ))
    await started(admin)
    asking.cancel()
    await asyncio.wait([asking], timeout=SECONDS)
    assert asking.cancelled()
    assert not alive(admin)


async def test_ctrl_c_waits_until_the_preparation_has_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = False

    async def prepare(options: operator.Options, screen: Screen, clock: Clock) -> None:
        nonlocal ended
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(SECONDS)
        finally:
            await rest()
            ended = True

    monkeypatch.setattr(operator, "prepare", prepare)
    async with asyncio.timeout(SECONDS):
        await operator.run(plan(tmp_path))
    assert ended
