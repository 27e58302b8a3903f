"""Processes of earlier runs: servers are recorded by process ID, agents by their instance folders.

A process is identified by its ID and its start time (see `nstance.providers.processes`), so that another process with a
reused ID is never stopped.
"""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nstance.dev.errors import DevError
from nstance.model.ids import InstanceId
from nstance.providers import instance_dirs, processes

MARK = "NSTANCE_DEV"  # the environment variable that marks our processes, with the folder of their records
AGENT_GRACE_SECONDS = 3.0
SERVER_GRACE_SECONDS = 15.0  # also for a supervisor, which stops servers and agents first
_THREADS = 16


def claim(folder: Path, name: str) -> None:
    """Records this process as the one that runs here. Raises DevError if another does."""
    process = _recorded(folder / f"{name}.json")
    if process is not None and processes.is_running(process):
        raise DevError(f"already running here as process {process.pid}; stop it first (Ctrl+C, or make clean-dev)")
    record(folder, name, os.getpid())


def record(folder: Path, name: str, pid: int) -> None:
    start = processes.start_of(pid)
    if start is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps({"pid": pid, "start": start}))


def remove_record(folder: Path, name: str) -> None:
    (folder / f"{name}.json").unlink(missing_ok=True)


def end_servers(folder: Path) -> list[str]:
    """Stops all recorded processes but this one. Returns their names."""
    return [path.stem for path in sorted(folder.glob("*.json")) if end_server(folder, path.stem)]


def end_server(folder: Path, name: str) -> bool:
    """Returns whether it was running."""
    path = folder / f"{name}.json"
    process = _recorded(path)
    if process is not None and process.pid == os.getpid():
        return False
    is_running = process is not None and processes.is_running(process)
    if process is not None and is_running:
        processes.end(process, mark=f"{MARK}={folder}", grace=SERVER_GRACE_SECONDS)
    path.unlink(missing_ok=True)
    return is_running


def agents(instances: Path) -> Iterator[tuple[InstanceId, processes.Process]]:
    """The running agents of these instance folders."""
    if not instances.is_dir():
        return
    known = instance_dirs.InstanceDirs(instances)
    for id in known.ids():
        try:
            process = known.process(id)
        except instance_dirs.UnreadableError:
            continue  # being created, or damaged: its process is not certain
        if process is not None and processes.is_running(process):
            yield id, process


def end_agents(instances: Path) -> int:
    found = list(agents(instances))

    def end(agent: tuple[InstanceId, processes.Process]) -> None:
        id, process = agent
        processes.end(process, mark=f"NSTANCE_INSTANCE_ID={id}", grace=AGENT_GRACE_SECONDS)

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(end, found))
    return len(found)


def _recorded(path: Path) -> processes.Process | None:
    try:
        raw = json.loads(path.read_text())
        return processes.Process(int(raw["pid"]), str(raw["start"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
