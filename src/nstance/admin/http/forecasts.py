"""Forecasts in the background: the simulator in a process of its own, one at a time.

The simulator is a program above this one, so it is started and not imported. It has a deadline and a low priority, and it
ends with this program.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nstance.admin.shard.records import Record
from nstance.admin.shard.shapes import timestamp_ms
from nstance.clock import Clock, Rng
from nstance.model.ids import ShardId

SCENARIOS = (
    "spot-storm",
    "zone-brown-out",
    "bad-image",
    "slow-storage",
    "failover-hourly",
    "capacity",
    "new-template",
)
MAX_KEPT = 10
MAX_SECONDS = 900.0
MAX_OUTPUT_BYTES = 1 << 20
NICENESS = 10


class BusyError(Exception):
    """A forecast is running already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRequest:
    shard: ShardId
    scenario: str
    hours: float
    agents: int | None
    all_spot: bool


@dataclass(slots=True)
class _Forecast:
    id: str
    request: ForecastRequest
    started: float
    state: str = "running"  # running, done, failed, cancelled
    finished: float | None = None
    error: str | None = None
    result: dict[str, Any] = field(default_factory=dict)
    task: "asyncio.Task[None] | None" = None

    def record(self) -> Record:
        request = self.request
        return {
            "id": self.id,
            "shard": request.shard,
            "scenario": request.scenario,
            "hours": request.hours,
            "agents": request.agents,
            "all_spot": request.all_spot,
            "state": self.state,
            "started": timestamp_ms(int(self.started * 1000)),
            "finished": timestamp_ms(int((self.finished or 0) * 1000)),
            "error": self.error,
            "progress": None,
            "summary": self.result.get("summary", []),
            "points": self.result.get("points", []),
            "marks": self.result.get("marks", []),
        }


class Forecasts:
    def __init__(self, clock: Clock, rng: Rng) -> None:
        self._clock = clock
        self._rng = rng
        self._kept: OrderedDict[str, _Forecast] = OrderedDict()

    def list(self) -> list[Record]:
        """Newest first, without their points."""
        return [{**each.record(), "points": [], "marks": []} for each in reversed(self._kept.values())]

    def get(self, id: str) -> Record | None:
        found = self._kept.get(id)
        return found.record() if found is not None else None

    def start(self, config: bytes, request: ForecastRequest) -> Record:
        """Raises BusyError."""
        if any(each.state == "running" for each in self._kept.values()):
            raise BusyError("a forecast is running already: wait for it, or cancel it")
        forecast = _Forecast(f"f{self._rng.bits(40):010x}", request, self._clock.wall())
        self._kept[forecast.id] = forecast
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        forecast.task = asyncio.create_task(self._run(forecast, config))
        return forecast.record()

    async def cancel(self, id: str) -> Record | None:
        found = self._kept.get(id)
        if found is None:
            return None
        if found.task is not None and found.state == "running":
            found.task.cancel()
            await asyncio.wait([found.task])
        return found.record()

    async def close(self) -> None:
        for each in self._kept.values():
            await self.cancel(each.id)

    async def _run(self, forecast: _Forecast, config: bytes) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="nstance-forecast-") as directory:
                forecast.result = await self._simulate(Path(directory), config, forecast.request)
            forecast.state = "done"
        except asyncio.CancelledError:
            forecast.state, forecast.error = "cancelled", "cancelled"
        except TimeoutError:
            forecast.state = "failed"
            forecast.error = f"it took longer than {MAX_SECONDS / 60:.0f} minutes: choose fewer instances or hours"
        except (OSError, ValueError) as problem:
            forecast.state, forecast.error = "failed", str(problem)
        finally:
            forecast.finished = self._clock.wall()

    async def _simulate(self, directory: Path, config: bytes, request: ForecastRequest) -> dict[str, Any]:
        (directory / "config.jsonc").write_bytes(config)
        words = ["run", "--config", "config.jsonc", "--scenario", request.scenario, "--hours", str(request.hours)]
        words += ["--svg", "chart.svg", "--json", "points.json"]
        words += ["--agents", str(request.agents)] if request.agents is not None else []
        words += ["--all-spot"] if request.all_spot else []
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nstance.sim.main", *words),
            cwd=directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            process_group=0,
            limit=MAX_OUTPUT_BYTES,
        )
        try:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
            async with asyncio.timeout(MAX_SECONDS):
                _, problems = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            raise ValueError(problems.decode("utf-8", "replace").strip()[-MAX_OUTPUT_BYTES:] or "the simulator failed")
        found: dict[str, Any] = json.loads((directory / "points.json").read_bytes())
        return found
