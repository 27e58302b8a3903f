"""The parent's side of a measured server: requests and answers as JSON lines over its standard input and output.

server = Measured(await start(settings, log), log)
usage = await server.ask("usage")
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.fleet_server import EXACT_MEMORY, TIMEOUT_SECONDS

IDLE_CPU_SECONDS = 0.05  # in half a second


class Measured:
    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.creates: list[tuple[float, str, str]] = []  # when, which instance, of which group
        self.refusals: dict[str, float] = {}  # for lack of capacity: which instance, when
        self.deletes: dict[str, float] = {}
        self.log = log
        self._process = process
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._requests = 0
        self._ended: RuntimeError | None = None
        self._changed = asyncio.Condition()
        self.agents_known: asyncio.Future[Any] = asyncio.get_running_loop().create_future()  # its first message
        self._reading = asyncio.create_task(self._read())

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        if self._ended is not None:
            raise self._ended
        self._requests += 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies[self._requests] = answer
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"number": self._requests, "do": do, **arguments}).encode() + b"\n")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await answer

    async def wait_idle(self) -> dict[str, Any]:
        """Wait until the server is idle. Returns its usage then."""
        before = await self.ask("usage")
        while True:
            await asyncio.sleep(0.5)
            after = await self.ask("usage")
            if after["cpu"] - before["cpu"] < IDLE_CPU_SECONDS:
                return after
            before = after

    async def created(self, group: str, since: float, *, seconds: float = 10.0) -> float:
        """When the first create call for the group after that moment was made."""
        async with asyncio.timeout(seconds), self._changed:
            while True:
                for at, _, of in reversed(self.creates):
                    if at < since:
                        break
                    if of == group:
                        return at
                await self._changed.wait()

    async def fell_back(self, group: str, since: float) -> float:
        """Seconds from the refusal of a create call of the group to the next call for that instance."""

        def find() -> float | None:
            found = ((at, id) for at, id, of in reversed(self.creates) if of == group and at >= since)
            return next((at - self.refusals[id] for at, id in found if self.refusals.get(id, at) < at), None)

        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: find() is not None)
            seconds = find()
            assert seconds is not None
            return seconds

    async def count_created(self, count: int) -> None:
        """Wait for this many create calls."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.creates) >= count)

    async def deleted(self, id: str, *, seconds: float) -> float:
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(lambda: id in self.deletes)
            return self.deletes[id]

    def kill(self) -> float:
        """Returns when it was killed."""
        at = time.monotonic()
        self._process.kill()
        return at

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def print_log_tail(self) -> None:
        print("\n".join(self.log.read_text(errors="replace").splitlines()[-15:]), file=sys.stderr)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            if "agents" in message and "reply" not in message:
                self.agents_known.set_result(message["agents"])
            elif "reply" in message:
                self._on_reply(message)
            else:
                await self._on_event(message)
        self._ended = RuntimeError("the measured server ended: see its log")
        for waiting in [self.agents_known, *self._replies.values()]:
            if not waiting.done():
                waiting.set_exception(self._ended)

    def _on_reply(self, message: dict[str, Any]) -> None:
        waiting = self._replies.pop(message.pop("reply"))
        if "error" in message:
            waiting.set_exception(RuntimeError(message["error"]))
        elif not waiting.done():
            waiting.set_result(message)

    async def _on_event(self, event: dict[str, Any]) -> None:
        async with self._changed:
            if event["event"] == "create":
                self.creates.append((event["at"], event["id"], event["group"]))
            elif event["event"] == "refused":
                self.refusals[event["id"]] = event["at"]
            else:
                self.deletes.setdefault(event["id"], event["at"])
            self._changed.notify_all()


async def start(settings: dict[str, Any], log: Path) -> asyncio.subprocess.Process:
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY)
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.fleet_server",
            json.dumps(settings),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=descriptor,
            env=os.environ | (EXACT_MEMORY if settings["exact_memory"] else {}),
            limit=1 << 24,
        )
    finally:
        os.close(descriptor)
