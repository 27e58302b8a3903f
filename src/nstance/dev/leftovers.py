"""What a run started and must not leave behind: servers by their recorded process, agents by their homes.

A process is its number and its start (see `nstance.providers.processes`), so that a number which meanwhile belongs to
somebody else is never hit.
"""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nstance.model.ids import InstanceId
from nstance.providers import instance_dirs, processes

GRACE = 3.0  # seconds for an agent
SERVER_GRACE = 15.0  # for a server, or for whoever looks after servers and agents and ends them first
_THREADS = 16


class Busy(Exception):
    """Somebody else runs here."""


def claim(folder: Path, name: str) -> None:
    """Record this process as the one that runs here."""
    process = _recorded(folder / f"{name}.json")
    if process is not None and processes.is_running(process):
        raise Busy(f"it runs here already, as process {process.pid}; end that first (Ctrl+C, or make clean-dev)")
    remember(folder, name, os.getpid())


def remember(folder: Path, name: str, pid: int) -> None:
    start = processes.start_of(pid)
    if start is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps({"pid": pid, "start": start}))


def forget(folder: Path, name: str) -> None:
    (folder / f"{name}.json").unlink(missing_ok=True)


def end_servers(folder: Path) -> list[str]:
    """Ends what is recorded here and still runs, but for this process. The names of what was ended."""
    return [path.stem for path in sorted(folder.glob("*.json")) if end_server(folder, path.stem)]


def end_server(folder: Path, name: str) -> bool:
    """Says whether there was one."""
    path = folder / f"{name}.json"
    process = _recorded(path)
    if process is not None and process.pid == os.getpid():
        return False
    runs = process is not None and processes.is_running(process)
    if process is not None and runs:
        processes.end(process, mark=f"NSTANCE_DEV={folder}", grace=SERVER_GRACE)
    path.unlink(missing_ok=True)
    return runs


def agents(instances: Path) -> Iterator[tuple[InstanceId, processes.Process]]:
    """The agents that run in these homes."""
    if not instances.is_dir():
        return
    known = instance_dirs.InstanceDirs(instances)
    for id in known.ids():
        try:
            process = known.process(id)
        except instance_dirs.UnreadableError:
            continue  # being made, or damaged: nothing that could be ended for sure
        if process is not None and processes.is_running(process):
            yield id, process


def end_agents(instances: Path) -> int:
    found = list(agents(instances))

    def end(agent: tuple[InstanceId, processes.Process]) -> None:
        id, process = agent
        processes.end(process, mark=f"NSTANCE_INSTANCE_ID={id}", grace=GRACE)

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(end, found))
    return len(found)


def _recorded(path: Path) -> processes.Process | None:
    try:
        raw = json.loads(path.read_text())
        return processes.Process(int(raw["pid"]), str(raw["start"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
