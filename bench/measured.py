"""A process with a server in it that is measured, asked over its standard input: one JSON object per line, both ways.

server = Measured(await start(told, log), log)
usage = await server.ask("usage")
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.fleet_server import EXACT_MEMORY, PATIENCE

QUIET = 0.05  # seconds of processor time in half a second


class Measured:
    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.creates: list[tuple[float, str, str]] = []  # when, which instance, of which group
        self.deletes: dict[str, float] = {}
        self.log = log
        self._process = process
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._asked = 0
        self._ended: RuntimeError | None = None
        self._news = asyncio.Condition()
        self.greeted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()  # the agents that it has
        self._reading = asyncio.create_task(self._read())

    async def ask(self, do: str, **words: Any) -> dict[str, Any]:
        if self._ended is not None:
            raise self._ended
        self._asked += 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies[self._asked] = answer
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"number": self._asked, "do": do, **words}).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            return await answer

    async def quiet(self) -> dict[str, Any]:
        """Wait until the server has done what it had to do; its usage then."""
        before = await self.ask("usage")
        while True:
            await asyncio.sleep(0.5)
            after = await self.ask("usage")
            if after["cpu"] - before["cpu"] < QUIET:
                return after
            before = after

    async def created(self, group: str, since: float, *, seconds: float = 10.0) -> float:
        """When a VM of the group was asked for, after that moment."""
        async with asyncio.timeout(seconds), self._news:
            while True:
                for at, _, of in reversed(self.creates):
                    if at < since:
                        break
                    if of == group:
                        return at
                await self._news.wait()

    async def count_created(self, count: int) -> None:
        """Until so many VMs have been asked for."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.creates) >= count)

    async def deleted(self, id: str, *, seconds: float) -> float:
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(lambda: id in self.deletes)
            return self.deletes[id]

    def kill(self) -> float:
        """As the kernel does; when."""
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

    def show_end(self) -> None:
        print("\n".join(self.log.read_text(errors="replace").splitlines()[-15:]), file=sys.stderr)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            if "agents" in said and "reply" not in said:
                self.greeted.set_result(said["agents"])
            elif "reply" in said:
                self._reply(said)
            else:
                await self._hear(said)
        self._ended = RuntimeError("the measured server ended; its log says why")
        for waiting in [self.greeted, *self._replies.values()]:
            if not waiting.done():
                waiting.set_exception(self._ended)

    def _reply(self, said: dict[str, Any]) -> None:
        waiting = self._replies.pop(said.pop("reply"))
        if "error" in said:
            waiting.set_exception(RuntimeError(said["error"]))
        elif not waiting.done():
            waiting.set_result(said)

    async def _hear(self, said: dict[str, Any]) -> None:
        async with self._news:
            if said["event"] == "create":
                self.creates.append((said["at"], said["id"], said["group"]))
            else:
                self.deletes.setdefault(said["id"], said["at"])
            self._news.notify_all()


async def start(told: dict[str, Any], log: Path) -> asyncio.subprocess.Process:
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY)
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.fleet_server",
            json.dumps(told),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=descriptor,
            env=os.environ | (EXACT_MEMORY if told["exact_memory"] else {}),
            limit=1 << 24,
        )
    finally:
        os.close(descriptor)
