"""`make dev`: a shard with a leader and a standby on this machine, and a group of instances that are processes.

It tells in plain words what happens and how to break it. Everything it makes is in one folder. `--once` breaks something
itself, shows that it heals and ends: a first look for people, and a test (`smoke`).
"""

import argparse
import asyncio
import http.client
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from nstance import clock as clocks
from nstance.dev import child, configs, leftovers, smoke
from nstance.dev.screen import Screen
from nstance.dev.smoke import Failed
from nstance.dev.story import Story
from nstance.model.ids import ShardId
from nstance.objects import errors
from nstance.objects.file import FileStore
from nstance.server.config import configuration

SHARD = ShardId("dev")
KEY = "thisisatest32bytekey123456789012"  # for development only; everybody knows it
LOOK = 0.1  # seconds between two looks at everything
RESTART = 5.0  # seconds after which a server that was killed is started again
EARLY = 3.0  # a server that ends sooner than this cannot run at all
DEADLINE = 60.0  # seconds for each step of --once
OFFSETS = (0, configs.STANDBY)


class Dev:
    def __init__(self, folder: Path, config: Path, *, port: int, keep: bool, within: float = DEADLINE) -> None:
        self.clock = clocks.SystemClock()
        self._folder = folder
        self._config = config
        self._port = port
        self._keep = keep
        self._within = within
        self._instances = folder / "instances"
        self._pids = folder / "pids"
        self._store = FileStore(folder / "bucket", clock=self.clock)
        self._seen_config = 0
        self.screen = Screen(sys.stdout, self.clock)
        self.story = Story(self._store, SHARD, instances=self._instances, screen=self.screen, clock=self.clock)
        self.servers = [self._server(number, offset) for number, offset in enumerate(OFFSETS, 1)]
        self._ended: dict[int, float] = {}  # when each process was found ended
        self._numbers: tuple[int, tuple[int, ...]] | None = None  # shown last

    async def prepare(self) -> None:
        """Raises Busy, Unusable or NoConfiguration."""
        leftovers.claim(self._pids, "dev")
        for name in await asyncio.to_thread(leftovers.end_servers, self._pids):
            self.screen.say(f"{name} of an earlier run was still there; it is ended now")
        if in_use := configs.taken(self._port, OFFSETS):
            raise configs.Unusable(
                f"port {in_use[0]} is in use; end the process that has it, or choose others: make dev PORTS=18990"
            )
        before = await self.story.open()
        await self._put_config()
        self.screen.say(f"one shard, two servers; the bucket, the logs and the instances are in {_short(self._folder)}")
        if before:
            self.screen.say(f"the bucket knows {before} instances of an earlier run; what is gone of them is replaced")

    async def start(self) -> None:
        for server in self.servers:
            await server.start()
            self.screen.say(f"{server.name} started (pid {server.pid})")

    async def run(self) -> None:
        """Look after everything, until cancelled. Raises Failed when a server cannot run."""
        while True:
            for server in self.servers:
                for line in server.lines():
                    self.screen.quote(server.name, line)
            await self._revive()
            await self._put_config()
            await self.story.look()
            self._show_numbers()
            await self.clock.sleep(LOOK)

    async def count_connected(self) -> None:
        """Ask the leader for its agents, until cancelled. Beside everything else: a paused leader does not answer."""
        while True:
            port = self._port + OFFSETS[self.servers.index(self.leader())]
            self.story.connected = await asyncio.to_thread(_connected_agents, port)
            await self.clock.sleep(LOOK)

    async def stop(self) -> None:
        self.screen.say("ending the servers")
        await asyncio.gather(*(server.stop() for server in self.servers))
        if self._keep:
            self.screen.say("the agents are kept; the next `make dev` finds them again, `make clean-dev` ends them")
        else:
            count = await asyncio.to_thread(leftovers.end_agents, self._instances)
            self.screen.say(f"ended {count} agents; what was decided stays in {_short(self._folder / 'bucket')}")
        leftovers.forget(self._pids, "dev")
        await self._store.close()

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        end = self.clock.monotonic() + self._within
        while not holds():
            if self.clock.monotonic() > end:
                lacks = self.story.lacks() or "nothing else is missing"
                raise Failed(
                    f"expected within {self._within:g} s: {what}; {lacks}; the logs are in {self._folder / 'logs'}"
                )
            await self.clock.sleep(LOOK / 2)

    async def guide(self) -> None:
        """Once everything runs: how to break it, with the numbers and paths of this run."""
        try:
            await self.until("a whole group", self.story.whole)
        except Failed as problem:
            self.screen.say(str(problem))
            return
        id, pid = next(iter(self.story.agents().items()), ("", 0))
        leader = self.leader()
        self._numbers = (leader.pid, tuple(self.story.agents().values()))
        others = " and ".join(s.name for s in self.servers if s is not leader)
        rows = [
            (f"kill -9 {pid}", f"an agent, and with it the VM of {id}: it is replaced at once"),
            (f"kill -9 {leader.pid}", f"the leader: {others} takes over within a second, no instance is replaced"),
            (f"kill -STOP {leader.pid}", f"pause the leader: the same; wake it with kill -CONT {leader.pid}"),
            (f"kill {leader.pid}", "stop the leader in order: half a second"),
            (f"rm -r {_short(self._folder)}/cache-*", "the servers' caches: nothing happens"),
            (f"edit {_short(self._config)}", '"size": 5, or another greeting; it counts within a minute'),
            (f"cat {_short(self._instances)}/{id}/recv/motd", "a file that the server made for this instance"),
            (f"touch {_short(self._instances)}/{id}/broken", "its check fails: it is not ready until the file is gone"),
            (f"curl http://127.0.0.1:{self._port}/metrics", "numbers"),
        ]
        wide = 40  # longer ones stick out
        text = "\n".join(f"  {command:<{wide}}  {meaning}" for command, meaning in rows)
        self.screen.say(f"everything runs. Now break it, in another terminal:\n{text}\nCtrl+C ends everything.")

    def _server(self, number: int, offset: int) -> child.Child:
        name = f"server-{number}"
        return child.Child(
            name,
            command=[
                child.program("nstance-server", sys.executable),
                *("--id", name, "--shard", SHARD, "--storage", "file", "--bucket", str(self._folder / "bucket")),
                *("--cachedir", str(self._folder / f"cache-{number}"), "--port-offset", str(offset)),
                *("--advertise-host", "127.0.0.1", "--insecure-dev"),
            ],
            environment={"NSTANCE_ENCRYPTION_KEY": KEY, **os.environ, "NSTANCE_DEV": str(self._pids)},
            folder=self._folder,
            log=self._folder / "logs" / f"{name}.log",
            pids=self._pids,
            clock=self.clock,
        )

    def leader(self) -> child.Child:
        return next((s for s in self.servers if s.name == self.story.leader), self.servers[0])

    def _show_numbers(self) -> None:
        """The process numbers, whenever they have changed and everything runs: what `kill` needs."""
        numbers = (self.leader().pid, tuple(self.story.agents().values()))
        if self._numbers and self._numbers != numbers and self.story.whole():
            self.screen.say(f"now the leader has pid {numbers[0]}, the agents have {', '.join(map(str, numbers[1]))}")
            self._numbers = numbers

    async def _revive(self) -> None:
        for server in self.servers:
            if server.code is None:
                continue
            now = self.clock.monotonic()
            ended = self._ended.setdefault(server.pid, now)
            if ended == now:
                self._report(server)
            elif now - ended > RESTART:
                await server.start()
                self.screen.say(f"{server.name} started again (pid {server.pid})")

    def _report(self, server: child.Child) -> None:
        assert server.code is not None
        if server.code > 0 and self.clock.monotonic() - server.started < EARLY:
            raise Failed(f"{server.name} ended {child.describe(server.code)}; its log is {server.log}")
        how = child.describe(server.code)
        self.screen.say(f"{server.name} (pid {server.pid}) ended {how}; it is started again in {RESTART:g} s")
        if server.name == self.story.leader:
            self.story.broke(f"{server.name} ended")

    async def _put_config(self) -> None:
        """At the start, and whenever the file was saved. A bad one is shown and changes nothing."""
        saved = self._config.stat().st_mtime_ns
        if saved == self._seen_config:
            return
        first, self._seen_config = self._seen_config == 0, saved
        try:
            body = configs.adapt(
                self._config.read_text(),
                source=str(self._config),
                shard=SHARD,
                port=self._port,
                offsets=OFFSETS,
                instances=self._instances,
            )
        except configuration.NoConfigurationError as problem:
            if first:
                raise
            self.screen.say(f"{problem}\nThe old configuration stays.")
            return
        if await configs.put(self._store, SHARD, body, clock=self.clock) and not first:
            self.screen.say("the configuration was put into the bucket; the leader reads it within a minute")


async def play(dev: Dev, *, once: bool) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await dev.prepare()
    tasks: list[asyncio.Task[object]] = []
    try:
        await dev.start()
        running: asyncio.Task[object] = asyncio.create_task(dev.run())
        script: asyncio.Task[object] = asyncio.create_task(smoke.test(dev) if once else dev.guide())
        stopping: asyncio.Task[object] = asyncio.create_task(ended.wait())
        counting: asyncio.Task[object] = asyncio.create_task(dev.count_connected())
        tasks = [running, script, stopping, counting]
        decisive = [running, script, stopping] if once else [running, stopping]
        await asyncio.wait(decisive, return_when=asyncio.FIRST_COMPLETED)
        for task in (running, script):
            if task.done():
                task.result()
        if once and ended.is_set():
            raise Failed("ended by a signal before everything was shown")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await dev.stop()


def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    try:
        port = options.ports or configs.free_port(clocks.SystemRng(), OFFSETS)
        dev = Dev(
            options.dir.absolute(), options.config.absolute(), port=port, keep=options.keep, within=options.within
        )
        asyncio.run(play(dev, once=options.once))
    except (
        leftovers.Busy,
        configs.Unusable,
        configuration.NoConfigurationError,
        Failed,
        errors.StorageError,
        OSError,
    ) as problem:
        sys.exit(f"dev: {problem}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nstance.dev", description="A shard with a standby and a group of instances, on this machine."
    )
    parser.add_argument("--dir", type=Path, default=Path("temp/dev"), help="everything goes here (temp/dev)")
    parser.add_argument("--config", type=Path, default=Path("examples/config-dev.jsonc"), metavar="FILE")
    parser.add_argument(
        "--ports",
        type=_port,
        default=configs.PORT,
        metavar="N",
        help=f"the first of five ports, the standby's are {configs.STANDBY} higher ({configs.PORT}); auto: free ones",
    )
    parser.add_argument(
        "--once", action="store_true", help="kill an agent, wait for its replacement, kill the leader, end"
    )
    parser.add_argument(
        "--within", type=float, default=DEADLINE, metavar="SECONDS", help=f"for each step of --once ({DEADLINE:g})"
    )
    parser.add_argument("--keep", action="store_true", help="leave the agents running at the end")
    return parser


def _port(text: str) -> int:
    """0 for `auto`."""
    if text == "auto":
        return 0
    if not text.isdecimal() or not 1024 <= int(text) <= 65_000:
        raise argparse.ArgumentTypeError(f"expected 1024 to 65000 or auto, not {text!r}")
    return int(text)


def _connected_agents(port: int) -> int:
    """As a server's metrics say; 0 while it does not answer."""
    server = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        server.request("GET", "/metrics")
        lines = server.getresponse().read(1 << 20).decode().splitlines()
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        server.close()
    return sum(int(float(line.split()[1])) for line in lines if line.startswith("nstance_agents_connected "))


def _short(path: Path) -> str:
    """As a person in this folder would write it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
