"""Processes known by more than their number.

A process number is reused, so a process is its number and the moment it started, in the machine's own words. The trap:
a process that nobody has reaped still has a number and a start; it is a zombie, and it runs no more. This module needs
the standard library only and imports fast, because the launcher of an agent uses it too.
"""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_STEP = 0.01  # seconds between two looks at a process that is to end


class Process(NamedTuple):
    pid: int
    start: str


def start_of(pid: int) -> str | None:
    """When a process started, or None if there is none of that number or it is a zombie."""
    if not (_PROC / "self/stat").exists():
        return _start_by_ps(pid)
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()  # ticks count from boot, and so begin anew
    return f"{boot}:{fields[19]}"


def runs(process: Process) -> bool:
    return start_of(process.pid) == process.start


def end(process: Process, *, mark: str, grace: float) -> bool:
    """Ask a process to end, make it end after the grace, and end what it left behind in its session with it, as far as
    that carries the mark (`NAME=value`) in its environment. Whether all of it is positively dead."""
    _signal(process, signal.SIGTERM)
    if not _ended(process, grace):
        _signal(process, signal.SIGKILL)
        if not _ended(process, grace):
            return False
    for _ in range(_steps(grace)):
        left = session(process.pid, mark=mark)
        if not left:
            return True
        for each in left:
            _signal(each, signal.SIGKILL)
        time.sleep(_STEP)
    return False


def session(leader: int, *, mark: str) -> list[Process]:
    """The living members of a session that carry the mark. Two signs, because a session's number is reused as well.
    Empty where the system has no /proc."""
    found = []
    for entry in os.scandir(_PROC) if _PROC.is_dir() else ():
        if not entry.name.isdecimal():
            continue
        pid = int(entry.name)
        fields = _stat(pid)
        if fields is None or int(fields[3]) != leader or not _marked(pid, mark):
            continue
        start = start_of(pid)
        if start is not None:
            found.append(Process(pid, start))
    return found


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third one (the state) on."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()  # the second field is a program's name and may hold spaces and brackets


def _marked(pid: int, mark: str) -> bool:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False  # gone, or somebody else's
    return mark.encode() in environment.split(b"\0")


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
    """Through a handle on the process where the system has one, so that no other process of that number is hit."""
    try:
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return
    try:
        if not runs(process):
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


def _ended(process: Process, within: float) -> bool:
    for _ in range(_steps(within)):
        if not runs(process):
            return True
        time.sleep(_STEP)
    return not runs(process)


def _steps(seconds: float) -> int:
    return max(1, round(seconds / _STEP))
