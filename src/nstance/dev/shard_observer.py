"""Follows a shard from outside and prints what happens: who leads, and how many instances run.

It reads only the bucket and the agents' processes, so everything printed has happened. A record does not prove that an
agent works, so a group is healthy only when its agents are connected and have installed their files.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from nstance.clock import Clock
from nstance.config import storage_keys
from nstance.dev import leftovers
from nstance.dev.screen import Screen
from nstance.model.ids import GroupKey, InstanceId, ShardId
from nstance.model.instance import Instance, Put, State
from nstance.objects import errors, journal, lease, slots
from nstance.objects.port import ObjectStore
from nstance.providers import processes
from nstance.server.config import configuration

CONFIG_SECONDS = 2.0  # between two reads of the configuration

Failure = tuple[str, float]  # what failed, and when on the monotonic clock


class ShardObserver:
    def __init__(
        self,
        store: ObjectStore,
        shard: ShardId,
        *,
        instances: Path,
        screen: Screen,
        clock: Clock,
        has_file: Callable[[Path, str], bool] = lambda folder, name: (folder / "recv" / name).is_file(),
    ) -> None:
        """`has_file`: whether the instance of a folder has installed a file."""
        self.first_seen: dict[InstanceId, dict[State, float]] = {}  # in the journal, on the wall clock
        self.leader = ""  # the server that holds the lease; empty: none
        self.connected = 0  # agents, as the leader counts them; set from outside
        self._store = store
        self._shard = shard
        self._instances = instances
        self._has_file = has_file
        self._screen = screen
        self._clock = clock
        self._last_epoch = 0  # of earlier runs
        self._journal = journal.Journal(
            store,
            journal_prefix=storage_keys.journal_prefix(shard),
            snapshot_prefix=storage_keys.snapshot_prefix(shard),
            clock=clock,
        )
        self._state = journal.JournalState()
        self._sizes: Mapping[GroupKey, int] = {}
        self._files: Mapping[GroupKey, Collection[str]] = {}
        self._config_read = float("-inf")
        self._agents: dict[InstanceId, processes.Process] = {}
        self._printed: dict[GroupKey, tuple[int, int]] = {}
        self._leader_failure: Failure | None = None
        self._agent_failure: Failure | None = None
        self._storage_problem = ""

    async def load(self) -> int:
        """Reads the state of earlier runs. Returns how many instances were running."""
        self._state, _ = await self._journal.load()
        seen = await lease.read(self._store, storage_keys.lease(self._shard))
        self._last_epoch = seen.lease.epoch if seen is not None else 0
        return sum(i.state is State.RUNNING for i in self._state.instances.values())

    async def poll(self) -> None:
        """Prints what is new."""
        try:
            await self._read_config()
            self._check_agents()
            await self._check_leader()
            await self._read_journal()
            self._storage_problem = ""
        except (errors.StorageError, lease.BadLeaseError, slots.DamagedError) as problem:
            if str(problem) != self._storage_problem:
                self._screen.say(f"failed to read the bucket: {problem}")
            self._storage_problem = str(problem)
        self._print_groups()

    def is_healthy(self) -> bool:
        """A server leads, every group has its size, and every agent is connected and has its files."""
        return not self.missing()

    def find_replacement(self, victim: InstanceId, before: Collection[InstanceId]) -> InstanceId | None:
        """A new instance that runs, once the victim is gone and the shard is healthy."""
        new = [id for id, times in self.first_seen.items() if id not in before and State.RUNNING in times]
        return new[0] if new and victim not in self.agents() and self.is_healthy() else None

    def missing(self) -> str:
        """The first thing that keeps the shard from being healthy; empty: nothing."""
        if not self.leader:
            return "no server leads"
        if not self._sizes:
            return "the configuration has no group"
        members = {key: self._running(key) for key in self._sizes}
        for key, found in members.items():
            alive = [i.id for i in found if i.id in self._agents]
            if len(found) != self._sizes[key] or len(alive) != len(found):
                return f"group {key.name} has {len(alive)} of {self._sizes[key]} instances with a running agent"
        expected = sum(len(found) for found in members.values())
        if self.connected < expected:
            return f"{self.connected} of {expected} agents are connected to the leader"
        for key, found in members.items():
            for each in found:
                folder = self._instances / each.id
                if missing := [name for name in sorted(self._files[key]) if not self._has_file(folder, name)]:
                    return f"{each.id} has not installed {', '.join(missing)}; see {folder / 'agent.log'}"
        return ""

    def agents(self) -> dict[InstanceId, int]:
        """The process IDs of the running agents, by instance."""
        return {id: process.pid for id, process in sorted(self._agents.items())}

    def on_server_exit(self, server: str) -> None:
        """Starts measuring the time until another server leads."""
        if server == self.leader:
            self._leader_failure = f"{server} exited", self._clock.monotonic()

    def _running(self, key: GroupKey) -> list[Instance]:
        return [i for i in self._state.instances.values() if i.key == key and i.counts and i.state is State.RUNNING]

    async def _read_config(self) -> None:
        now = self._clock.monotonic()
        if now - self._config_read < CONFIG_SECONDS:
            return
        self._config_read = now
        try:
            config = await configuration.read(self._store, self._shard)
        except configuration.NoConfigurationError:
            return  # the program that uploads it reports its problems
        self._sizes = {key: resolved.group.size for key, resolved in config.groups.items()}
        self._files = {key: resolved.files.keys() for key, resolved in config.groups.items()}

    def _check_agents(self) -> None:
        alive = dict(leftovers.agents(self._instances))
        for id, process in self._agents.items():
            record = self._state.instances.get(id)
            if id not in alive and record is not None and record.counts:
                self._screen.say(f"agent of {id} (pid {process.pid}) exited")
                self._agent_failure = f"{id} exited", self._clock.monotonic()
        self._agents = alive

    async def _check_leader(self) -> None:
        seen = await lease.read(self._store, storage_keys.lease(self._shard))
        is_held = seen is not None and not seen.lease.free and seen.lease.epoch > self._last_epoch
        leader = seen.lease.holder.server if seen is not None and is_held else ""
        if leader == self.leader:
            return
        self.leader = leader
        if seen is None or not leader:
            self._screen.say("no leader: the last one stepped down")
            return
        after = self._elapsed(self._leader_failure)
        self._leader_failure = None
        self._screen.say(f"leader: {leader} (epoch {seen.lease.epoch}){after}")

    async def _read_journal(self) -> None:
        while (slot := await self._journal.read(self._state.tail + 1)) is not None:
            self._state.apply(slot, 0)
            for entry in slot.entries:
                for change in entry.changes:
                    if isinstance(change, Put):
                        times = self.first_seen.setdefault(change.instance.id, {})
                        times.setdefault(change.instance.state, slot.at)

    def _print_groups(self) -> None:
        for key, size in self._sizes.items():
            running = sum(instance.id in self._agents for instance in self._running(key))
            if self._printed.get(key) == (running, size):
                continue
            self._printed[key] = (running, size)
            after = ""
            if running == size:
                after, self._agent_failure = self._elapsed(self._agent_failure), None
            count = (
                f"{running} of {size} instances running"
                if running <= size
                else f"{running} instances running, {size} wanted"
            )
            self._screen.say(f"group {key.name}: {count}{after}")

    def _elapsed(self, failure: Failure | None) -> str:
        return f", {self._clock.monotonic() - failure[1]:.2f} s after {failure[0]}" if failure is not None else ""
