"""`make dev`: a shard with a leader and a standby on this machine, and a group of instances that are processes.

It prints what happens and how to break it. All its files are in one folder. `--once` breaks things itself, checks that they
recover, and exits: a demonstration and a test (`smoke`).
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from nstance import clock as clocks
from nstance.dev import child, dev_config, leftovers, loopback, signals, smoke, supervisor, vm_smoke, vms
from nstance.dev.errors import DevError
from nstance.dev.screen import Screen
from nstance.dev.shard_observer import ShardObserver
from nstance.model.ids import ShardId
from nstance.objects import errors
from nstance.objects.file import FileStore
from nstance.providers.qemu import qmp
from nstance.server.config import configuration
from nstance.tasks import background

SHARD = ShardId("dev")
DEV_ENCRYPTION_KEY = "thisisatest32bytekey123456789012"  # public, for development only
POLL_SECONDS = 0.1
MIN_UPTIME_SECONDS = 3.0  # a server that fails sooner cannot run at all
STEP_TIMEOUT_SECONDS = 60.0  # for each step of --once
PORT_OFFSETS = (0, dev_config.STANDBY_PORT_OFFSET)
_COMMAND_WIDTH = 40


class Dev:
    def __init__(
        self, folder: Path, config: Path, *, port: int, keep: bool, timeout: float, vm_images: Path | None = None
    ) -> None:
        """`vm_images`: the folder of `make vm-image`, if instances are VMs."""
        self.clock = clocks.SystemClock()
        self._folder = folder
        self._port = port
        self._keep = keep
        self._timeout = timeout
        self.instances = folder / "instances"
        self.is_vms = vm_images is not None
        self._vm_images = vm_images
        self._pids = folder / "pids"
        self._store = FileStore(folder / "bucket", clock=self.clock)
        self.screen = Screen(sys.stdout, self.clock)
        self.observer = ShardObserver(
            self._store,
            SHARD,
            instances=self.instances,
            screen=self.screen,
            clock=self.clock,
            **({"has_file": vms.has_file} if self.is_vms else {}),
        )
        layout = dev_config.Layout(SHARD, port, PORT_OFFSETS, self.instances, vm_images=vm_images)
        self.config = config
        self._config = dev_config.ConfigFile(config, self._store, layout)
        self.servers = [self._server(number, offset) for number, offset in enumerate(PORT_OFFSETS, 1)]
        self._supervisor = supervisor.Supervisor(self.servers, self.screen, self.clock, on_exit=self._on_server_exit)
        self._printed_pids: tuple[int, tuple[int, ...]] | None = None

    async def prepare(self) -> None:
        """Raises DevError or NoConfigurationError."""
        if self._vm_images is not None and not (self._vm_images / "state").is_dir():
            raise DevError(f"expected a guest in {self._vm_images}, found none; run `make vm-image` first")
        leftovers.claim(self._pids, "dev")
        for name in await asyncio.to_thread(leftovers.end_servers, self._pids):
            self.screen.say(f"stopped {name} of an earlier run")
        if in_use := dev_config.ports_in_use(self._port, PORT_OFFSETS):
            raise DevError(
                f"port {in_use[0]} is in use; stop the process that uses it, or choose other ports: make dev PORTS=18990"
            )
        before = await self.observer.load()
        await self._config.upload_if_changed(self.screen, self.clock)
        self.screen.say(
            "Nstance on this machine: one shard, a leader and a standby, "
            f"instances are {'VMs' if self.is_vms else 'processes'}\n"
            f"bucket, logs and instances: {_relative(self._folder)}\n"
            f"the configuration that servers read: {_relative(self._folder)}/bucket/shard/{SHARD}/config.jsonc"
        )
        if before:
            self.screen.say(f"found {before} instances of an earlier run; missing ones are replaced")

    async def start(self) -> None:
        await self._supervisor.start()

    async def run(self) -> None:
        """Runs until cancelled. Raises DevError if a server cannot run."""
        while True:
            await self._supervisor.poll()
            await self._config.upload_if_changed(self.screen, self.clock)
            await self.observer.poll()
            self._print_pids()
            await self.clock.sleep(POLL_SECONDS)

    async def count_connected(self) -> None:
        """Asks the leader for its agents, until cancelled. A task of its own, because a paused leader does not answer."""
        while True:
            port = self._port + PORT_OFFSETS[self.servers.index(self.leader())]
            self.observer.connected = await asyncio.to_thread(loopback.connected_agents, port)
            await self.clock.sleep(POLL_SECONDS)

    async def stop(self) -> None:
        self.screen.say("stopping the servers")
        await self._supervisor.stop(child.GRACE_SECONDS)
        if self._keep:
            self.screen.say("agents keep running: the next `make dev` uses them, `make clean-dev` stops them")
        else:
            count = await asyncio.to_thread(leftovers.end_agents, self.instances)
            self.screen.say(f"stopped {count} agents; the bucket stays in {_relative(self._folder / 'bucket')}")
        leftovers.remove_record(self._pids, "dev")
        await self._store.close()

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        end = self.clock.monotonic() + self._timeout
        while not holds():
            if self.clock.monotonic() > end:
                missing = self.observer.missing() or "the shard is healthy otherwise"
                raise DevError(
                    f"expected {what} within {self._timeout:g} s: {missing}; see the logs in {self._folder / 'logs'}"
                )
            await self.clock.sleep(POLL_SECONDS / 2)

    async def print_guide(self) -> None:
        """Prints how to break the shard, once it is healthy, with the process IDs and paths of this run."""
        try:
            await self.until("a healthy shard", self.observer.is_healthy)
        except DevError as problem:
            self.screen.say(str(problem))
            return
        id, pid = next(iter(self.observer.agents().items()), ("", 0))
        leader = self.leader()
        if self.is_vms:
            self.screen.say(vms.guide(_relative(self.instances), id, leader.pid))
            return
        self._printed_pids = (leader.pid, tuple(self.observer.agents().values()))
        standby = " and ".join(each.name for each in self.servers if each is not leader)
        instance = f"{_relative(self.instances)}/{id}"
        rows = [
            (f"kill -9 {pid}", f"an agent and its VM {id} crash: the instance is replaced at once"),
            (f"kill -9 {leader.pid}", f"the leader crashes: {standby} leads within a second, instances stay"),
            (f"kill -STOP {leader.pid}", f"the leader hangs: the same; continue it with kill -CONT {leader.pid}"),
            (f"kill {leader.pid}", "the leader stops in order: the standby leads within half a second"),
            (f"rm -r {_relative(self._folder)}/cache-*", "the caches are lost: nothing happens"),
            (f"edit {_relative(self._config.path)}", 'set "size" to 5, or another greeting: active within a minute'),
            (f"cat {instance}/recv/motd", "a file that the server made for this instance"),
            (
                f"touch {instance}/broken",
                "its check fails (see its agent.log): the instance is not ready until you remove the file",
            ),
            (f"curl http://127.0.0.1:{self._port}/metrics", "metrics of server-1"),
        ]
        table = "\n".join(f"  {command:<{_COMMAND_WIDTH}}  {effect}" for command, effect in rows)
        self.screen.say(
            f"all instances are running. Break something, in a second terminal:\n{table}\n"
            "Ctrl+C stops everything. docs/getting-started.md says how to use nstance-admin here."
        )

    def leader(self) -> child.Child:
        return next((each for each in self.servers if each.name == self.observer.leader), self.servers[0])

    def _server(self, number: int, offset: int) -> child.Child:
        name = f"server-{number}"
        command = [
            child.program_path("nstance-server"),
            *("--id", name, "--shard", SHARD, "--storage", "file", "--bucket", str(self._folder / "bucket")),
            *("--cachedir", str(self._folder / f"cache-{number}"), "--port-offset", str(offset)),
            *("--advertise-host", "127.0.0.1", "--insecure-dev"),
        ]
        environment = {"NSTANCE_ENCRYPTION_KEY": DEV_ENCRYPTION_KEY, **os.environ}
        return child.Child(name, command, environment, temp=self._folder, cwd=self._folder, clock=self.clock)

    def _print_pids(self) -> None:
        """Prints the process IDs when they have changed and the shard is healthy: `kill` needs them."""
        pids = (self.leader().pid, tuple(self.observer.agents().values()))
        if self._printed_pids and self._printed_pids != pids and self.observer.is_healthy():
            self.screen.say(f"process IDs now: leader {pids[0]}, agents {', '.join(map(str, pids[1]))}")
            self._printed_pids = pids

    def _on_server_exit(self, server: child.Child) -> None:
        assert server.exit_code is not None
        if server.exit_code > 0 and self.clock.monotonic() - server.started < MIN_UPTIME_SECONDS:
            raise DevError(f"{server.name} {child.describe_exit(server.exit_code)}; see its log {server.log}")
        self.observer.on_server_exit(server.name)


async def _show(dev: Dev) -> None:
    """Breaks VMs first, because doing that by hand takes patience; processes are left to the user."""
    if dev.is_vms:
        try:
            await vm_smoke.test(dev)
        except (DevError, qmp.QmpError) as problem:
            dev.screen.say(str(problem))
    await dev.print_guide()


async def run(dev: Dev, *, once: bool) -> None:
    stop = signals.stop_event()
    await dev.prepare()
    try:
        await dev.start()
        script = (vm_smoke if dev.is_vms else smoke).test(dev) if once else _show(dev)
        async with background.running([dev.run(), stop.wait(), script, dev.count_connected()]) as tasks:
            await asyncio.wait(tasks[: 3 if once else 2], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks[:3]:
                if task.done():
                    task.result()
        if once and stop.is_set():
            raise DevError("stopped by a signal before the test was complete")
    finally:
        await dev.stop()


def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    try:
        port = options.ports or dev_config.find_free_port(clocks.SystemRng(), PORT_OFFSETS)
        folder, config = options.dir.absolute(), options.config.absolute()
        images = options.vm_images.absolute() if options.vm_images else None
        dev = Dev(folder, config, port=port, keep=options.keep, timeout=options.within, vm_images=images)
        asyncio.run(run(dev, once=options.once))
    except (DevError, configuration.NoConfigurationError, errors.StorageError, qmp.QmpError, OSError) as problem:
        sys.exit(f"dev: {problem}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nstance.dev", description="Run a shard with a standby and a group of instances on this machine."
    )
    parser.add_argument("--dir", type=Path, default=Path("temp/dev"), help="folder for all files (temp/dev)")
    parser.add_argument("--config", type=Path, default=Path("examples/config-dev.jsonc"), metavar="FILE")
    parser.add_argument(
        "--ports",
        type=_port,
        default=dev_config.DEFAULT_PORT,
        metavar="N",
        help=f"the first of five ports, or auto; the standby uses ports {PORT_OFFSETS[1]} higher "
        f"({dev_config.DEFAULT_PORT})",
    )
    parser.add_argument(
        "--once", action="store_true", help="kill an agent and the leader, check that the shard recovers, and exit"
    )
    parser.add_argument(
        "--within",
        type=float,
        default=STEP_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help=f"timeout of each step of --once ({STEP_TIMEOUT_SECONDS:g})",
    )
    parser.add_argument(
        "--vm-images", type=Path, metavar="DIR", help="instances are VMs, made of what `make vm-image` built here"
    )
    parser.add_argument("--keep", action="store_true", help="keep the agents running at the end")
    return parser


def _port(text: str) -> int:
    """0 for `auto`."""
    if text == "auto":
        return 0
    if not text.isdecimal() or not 1024 <= int(text) <= 65_000:
        raise argparse.ArgumentTypeError(f"expected 1024 to 65000 or auto, found {text!r}")
    return int(text)


def _relative(path: Path) -> str:
    """Relative to the current folder, if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
