"""Processes identified by number and start time.

Process numbers are reused, so a process is its number and the time it started, as the system reports it. The trap: a
process that was not reaped still has both; it is a zombie and no longer is_running. This module uses the standard library only
and imports fast, because the launcher of an agent uses it too.
"""

import os
import signal
import subprocess
import time
from collections.abc import Collection
from math import inf
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_POLL_SECONDS = 0.01


class Process(NamedTuple):
    pid: int
    start: str


def start_of(pid: int) -> str | None:
    """When a process started; None if it does not exist or is a zombie."""
    if not (_PROC / "self/stat").exists():
        return _start_by_ps(pid)
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()  # ticks count from boot
    return f"{boot}:{fields[19]}"


def is_running(process: Process) -> bool:
    return start_of(process.pid) == process.start


def end(process: Process, *, mark: str, grace: float) -> bool:
    """Terminate a process, kill it after the grace, and kill the processes of its session that have the mark
    (`NAME=value`) in their environment. Returns whether all of them are positively dead."""
    _signal(process, signal.SIGTERM)
    if not _wait_ended(process, grace):
        _signal(process, signal.SIGKILL)
        if not _wait_ended(process, grace):
            return False
    for _ in range(_steps(grace)):
        remaining = session(process.pid, mark=mark)
        if not remaining:
            return True
        for each in remaining:
            _signal(each, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    return False


def session(leader: int, *, mark: str) -> list[Process]:
    """The running processes of a session that have the mark, because session numbers are reused as well. Empty on systems
    without /proc."""
    found = []
    for entry in os.scandir(_PROC) if _PROC.is_dir() else ():
        if not entry.name.isdecimal():
            continue
        pid = int(entry.name)
        fields = _stat(pid)
        if fields is None or int(fields[3]) != leader or not _has_mark(pid, mark):
            continue
        start = start_of(pid)
        if start is not None:
            found.append(Process(pid, start))
    return found


def may_run(marks: Collection[str]) -> bool:
    """Whether a process on this machine has one of these marks. On systems without /proc nobody can tell, so it may."""
    if not _PROC.is_dir():
        return bool(marks)
    wanted = {mark.encode() for mark in marks}
    pids = (int(name) for name in os.listdir(_PROC) if name.isdecimal())
    return any(start_of(pid) is not None and not wanted.isdisjoint(_environment(pid)) for pid in pids)


def boot_time() -> float:
    """When this machine started, in seconds since 1970; infinite if nobody can tell."""
    try:
        lines = (_PROC / "stat").read_text().splitlines()
    except FileNotFoundError:
        return inf
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third one, the state."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()  # the second field is a program name and may contain spaces and brackets


def _has_mark(pid: int, mark: str) -> bool:
    return mark.encode() in _environment(pid)


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []  # gone, or another user's


def _start_by_ps(pid: int) -> str | None:
    """For systems without /proc."""
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    state, _, start = answer.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else start.strip()


def _signal(process: Process, number: signal.Signals) -> None:
    """Through a process handle where the system has one, so that no other process of that number gets the signal."""
    try:
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return
    try:
        if not is_running(process):
            return
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        if handle is not None:
            os.close(handle)


def _wait_ended(process: Process, within: float) -> bool:
    for _ in range(_steps(within)):
        if not is_running(process):
            return True
        time.sleep(_POLL_SECONDS)
    return not is_running(process)


def _steps(seconds: float) -> int:
    return max(1, round(seconds / _POLL_SECONDS))
