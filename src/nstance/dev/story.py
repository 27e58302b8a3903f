"""The story that the bucket tells: who leads, what was decided, how many instances run.

Only what is durable is told, so what stands on the screen has happened. Agents are looked at as well, because their end
is where a replacement's time begins. A record in the bucket does not prove that an agent works, so a group is whole only
when its agents are connected and have installed their files.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
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

REREAD = 2.0  # seconds between two looks at the wished sizes


@dataclass(slots=True)
class Life:
    """When the journal first said what of an instance, on the wall clock."""

    reached: dict[State, float] = field(default_factory=dict)


class Story:
    def __init__(self, store: ObjectStore, shard: ShardId, *, instances: Path, screen: Screen, clock: Clock) -> None:
        self.lives: dict[InstanceId, Life] = {}
        self.leader = ""  # the server that holds the lease; empty if nobody does
        self.connected = 0  # agents, as the leader counts them; told from outside
        self._store = store
        self._shard = shard
        self._instances = instances
        self._screen = screen
        self._clock = clock
        self._epoch = 0  # of an earlier run's last leader
        self._journal = journal.Journal(
            store,
            journal_prefix=storage_keys.journal_prefix(shard),
            snapshot_prefix=storage_keys.snapshot_prefix(shard),
            clock=clock,
        )
        self._book = journal.JournalState()
        self._sizes: Mapping[GroupKey, int] = {}
        self._files: Mapping[GroupKey, Collection[str]] = {}
        self._sizes_read = float("-inf")
        self._agents: dict[InstanceId, processes.Process] = {}
        self._shown: dict[GroupKey, tuple[int, int]] = {}
        self._broke: tuple[str, float] | None = None  # what happened last, and when
        self._trouble = ""

    async def open(self) -> int:
        """Read what earlier runs left; says how many instances they believed to run."""
        self._book, _ = await self._journal.load()
        seen = await lease.read(self._store, storage_keys.lease(self._shard))
        self._epoch = seen.lease.epoch if seen is not None else 0
        return sum(i.state is State.RUNNING for i in self._book.instances.values())

    async def look(self) -> None:
        """Tell what is new."""
        try:
            await self._desired_groups()
            self._watch_agents()
            await self._lead()
            await self._decisions()
            self._trouble = ""
        except (errors.StorageError, lease.BadLeaseError, slots.DamagedError) as problem:
            if str(problem) != self._trouble:
                self._screen.say(f"the bucket cannot be read: {problem}")
            self._trouble = str(problem)
        self._count()

    def running(self, key: GroupKey) -> list[Instance]:
        return [i for i in self._book.instances.values() if i.key == key and i.counts and i.state is State.RUNNING]

    def whole(self) -> bool:
        """Somebody leads, every group has its size, and every agent lives, is connected and has its files."""
        return not self.lacks()

    def lacks(self) -> str:
        """What is missing for that, the first thing only; empty if nothing is."""
        if not self.leader:
            return "no server leads"
        if not self._sizes:
            return "the configuration has no group"
        members = {key: self.running(key) for key in self._sizes}
        for key, found in members.items():
            living = [i.id for i in found if i.id in self._agents]
            if len(found) != self._sizes[key] or len(living) != len(found):
                return f"group {key.name} has {len(living)} of {self._sizes[key]} instances with a running agent"
        expected = sum(len(found) for found in members.values())
        if self.connected < expected:
            return f"{self.connected} of {expected} agents are connected to the leader"
        for key, found in members.items():
            for each in found:
                folder = self._instances / each.id / "recv"
                if missing := [name for name in sorted(self._files[key]) if not (folder / name).is_file()]:
                    return f"{each.id} has not installed {', '.join(missing)}; see agent.log beside {folder}"
        return ""

    def agents(self) -> dict[InstanceId, int]:
        """The agents that run, by instance, with their process number."""
        return {id: process.pid for id, process in sorted(self._agents.items())}

    def broke(self, what: str) -> None:
        """From here on the time to recovery counts."""
        self._broke = (what, self._clock.monotonic())

    async def _desired_groups(self) -> None:
        now = self._clock.monotonic()
        if now - self._sizes_read < REREAD:
            return
        self._sizes_read = now
        try:
            told = await configuration.read(self._store, self._shard)
        except configuration.NoConfigurationError:
            return  # whoever put it there is told what is wrong with it
        self._sizes = {key: resolved.group.size for key, resolved in told.groups.items()}
        self._files = {key: resolved.files.keys() for key, resolved in told.groups.items()}

    def _watch_agents(self) -> None:
        alive = dict(leftovers.agents(self._instances))
        for id, process in self._agents.items():
            record = self._book.instances.get(id)
            if id not in alive and record is not None and record.counts:
                self._screen.say(f"the agent of {id} (pid {process.pid}) ended")
                self.broke(f"{id} ended")
        self._agents = alive

    async def _lead(self) -> None:
        seen = await lease.read(self._store, storage_keys.lease(self._shard))
        held = seen is not None and not seen.lease.free and seen.lease.epoch > self._epoch
        leader = seen.lease.holder.server if seen is not None and held else ""
        if leader == self.leader:
            return
        self.leader = leader
        if seen is None or not leader:
            self._screen.say("the leader stepped down: nobody leads")
            return
        after = ""
        if self._broke is not None and self._broke[0].startswith("server"):
            after = f", {self._since():.2f} s after {self._broke[0]}"
            self._broke = None
        self._screen.say(f"the leader is {leader} (epoch {seen.lease.epoch}){after}")

    async def _decisions(self) -> None:
        while (slot := await self._journal.read(self._book.tail + 1)) is not None:
            self._book.apply(slot, 0)
            for entry in slot.entries:
                for change in entry.changes:
                    if isinstance(change, Put):
                        life = self.lives.setdefault(change.instance.id, Life())
                        life.reached.setdefault(change.instance.state, slot.at)

    def _count(self) -> None:
        for key, size in self._sizes.items():
            running = sum(instance.id in self._agents for instance in self.running(key))
            if self._shown.get(key) == (running, size):
                continue
            self._shown[key] = (running, size)
            text = f"group {key.name}: {running} of {size} running"
            if running == size and self._broke is not None and not self._broke[0].startswith("server"):
                text += f", whole again {self._since():.2f} s after {self._broke[0]}"
                self._broke = None
            self._screen.say(text)

    def _since(self) -> float:
        assert self._broke is not None
        return self._clock.monotonic() - self._broke[1]
