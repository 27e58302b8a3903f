"""CPU, memory, disk and load of the machine, from /proc. Values that cannot be read are zero, never an error.

CPU use is the share of busy ticks since the last reading; the first reading gives the share since boot.
"""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Vitals:
    uptime_seconds: float = 0.0
    cpu_percent: float = 0.0
    memory_percent: float = 0.0
    disk_percent: float = 0.0
    load1: float = 0.0


@dataclass(frozen=True, slots=True)
class Ticks:
    busy: int = 0
    total: int = 0


def parse_ticks(stat: str) -> Ticks:
    """From /proc/stat. Guest time is already part of user time; waiting for a disk counts as idle."""
    fields = stat.partition("\n")[0].split()
    if len(fields) < 6 or fields[0] != "cpu":
        return Ticks()
    numbers = [int(field) for field in fields[1:9]]
    return Ticks(sum(numbers) - numbers[3] - numbers[4], sum(numbers))


def cpu_percent(before: Ticks, after: Ticks) -> float:
    total = after.total - before.total
    return _percent(after.busy - before.busy, total)


def parse_memory_percent(meminfo: str) -> float:
    """From /proc/meminfo: memory that is not available to new processes."""
    sizes = {line.partition(":")[0]: line.split()[1] for line in meminfo.splitlines() if len(line.split()) >= 2}
    total, available = int(sizes.get("MemTotal", 0)), int(sizes.get("MemAvailable", 0))
    return _percent(total - available, total)


class VitalsReader:
    def __init__(self, *, proc: Path = Path("/proc"), disk: Path = Path("/")) -> None:
        self._proc = proc
        self._disk = disk
        self._ticks = Ticks()

    def read(self) -> Vitals:
        before, self._ticks = self._ticks, parse_ticks(self._read("stat"))
        return Vitals(
            uptime_seconds=float((self._read("uptime").split() or ["0"])[0]),
            cpu_percent=cpu_percent(before, self._ticks),
            memory_percent=parse_memory_percent(self._read("meminfo")),
            disk_percent=self._disk_percent(),
            load1=float((self._read("loadavg").split() or ["0"])[0]),
        )

    def _read(self, name: str) -> str:
        try:
            return (self._proc / name).read_text("ascii", "replace")
        except OSError:
            return ""

    def _disk_percent(self) -> float:
        try:
            disk = os.statvfs(self._disk)
        except OSError:
            return 0.0
        used = disk.f_blocks - disk.f_bfree
        return _percent(used, used + disk.f_bavail)  # as df counts: what is reserved for root is not free


def _percent(part: int, whole: int) -> float:
    return min(100.0, max(0.0, 100.0 * part / whole)) if whole > 0 else 0.0
