"""What people do to a shard: change and break its configuration, send requests, restore backups."""

import dataclasses
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from nstance.model import events as ev
from nstance.model.ids import GroupKey, Kind
from nstance.model.instance import State
from nstance.objects.journal import DeposedError
from nstance.server.leader.context import TermContext
from nstance.server.state.unknown_vms import key_of
from nstance.sim.desired_groups import key as group_key
from nstance.sim.faults import backup
from nstance.sim.faults.target import FaultGroup
from nstance.sim.faults.themes import draw_limits
from nstance.sim.operator_port import OperatorPort

if TYPE_CHECKING:
    from nstance.sim.world import World


class UserFaults(FaultGroup):
    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self._backup: backup.Backup | None = None
        self._restored = False

    # ---- configuration

    def _change(self, **fields: Any) -> None:
        world = self.world
        name = self.pick_group()
        groups = dict(world.desired_groups.groups)
        groups[name] = dataclasses.replace(groups[name], **fields)
        world.configure(dataclasses.replace(world.desired_groups, groups=groups))

    def scale(self) -> None:
        self._change(size=self.r.choice((0, 1, 2, 3, 4, 5)))

    def change_template(self) -> None:
        self._change(generation=self.r.randrange(4))

    def change_offers(self) -> None:
        """A revision with other instance types and markets, of which some may have no capacity."""
        types = self.r.choice((("small",), ("large",), ("small", "large"), ("large", "small")))
        markets = self.r.choice((("spot", "on-demand"), ("on-demand",), ("spot",), ()))
        self._change(generation=self.r.randrange(4), instance_types=types, markets=markets)

    def spoil_template(self) -> None:
        """A revision whose instances never become ready."""
        generation = 100 + len(self.world.bad_generations)
        self.world.bad_generations.add(generation)
        self._change(generation=generation)

    def change_files(self) -> None:
        """All instances of a group receive new files at once, and new checks if it has any: none is ready until then."""
        files = self.r.randrange(1000)
        has_checks = any(group.checks for group in self.world.desired_groups.groups.values())
        self._change(files=files, **({"checks": self.r.choice((1.0, 2.0, 3.0))} if has_checks else {}))

    def change_limits(self) -> None:
        self._change(**draw_limits(self.r))

    def break_config(self) -> None:
        """An invalid configuration, repaired a few seconds later."""
        self.world.put_config(self.r.choice((b"{", b"", b'{"cluster": {"id": "other"}}', b"\xff\xfe")))
        self.world.later(self.r.uniform(1.0, 6.0), lambda: self.world.put_config(self.world.desired_groups.text()))

    def lose_secret(self) -> None:
        """Files cannot be rendered for a while: instances without files stay without."""
        self.world.secrets._values.clear()
        self.world.later(self.r.choice((3.0, 15.0, 60.0)), self.world.restore_secrets)

    # ---- rollouts

    def roll_back(self) -> bool:
        return self._steer(lambda port, key: port.roll_back(key))

    def resume_rollout(self) -> bool:
        return self._steer(lambda port, key: port.resume(key))

    def _steer(self, act: Callable[[OperatorPort, GroupKey], Coroutine[Any, Any, None]]) -> bool:
        server = self.world.leader()
        if server is None or server.operator_port is None:
            return False
        server.spawn(act(server.operator_port, group_key(self.pick_group())))
        return True

    # ---- requests

    def pester(self) -> bool:
        """Deletions, replacements and on-demand instances by request."""
        server = self.world.leader()
        lead = server.lead if server is not None else None
        if server is None or lead is None:
            return False
        known = [i for i in lead.shard.instances.values() if i.state is not State.DELETED]
        choice = self.r.randrange(3)
        if choice == 2:
            id = server.server.leader.ids.make(Kind("sim"))
            event: ev.Event = ev.InstanceRequested(id)
        elif known:
            id = self.r.choice(known).id
            event = ev.DeletionRequested(id) if choice else ev.ReplacementRequested(id)
        else:
            return False
        group = group_key(self.pick_group())
        key = group if isinstance(event, ev.InstanceRequested) else None

        async def ask() -> None:
            self.world.auditor.requested.add(id)
            await self._ask(lead, event, key)

        server.spawn(ask())
        return True

    def decide_unknown(self) -> bool:
        """Somebody adopts or releases a VM that is held."""
        server = self.world.leader()
        lead = server.lead if server is not None else None
        held = lead.shard.unknown.all() if lead is not None else []
        if server is None or lead is None or not held:
            return False
        vm = self.r.choice(held).vm
        event = self.r.choice((ev.AdoptionRequested, ev.ReleaseRequested))(vm.id)

        async def ask() -> None:
            if isinstance(event, ev.ReleaseRequested):
                self.world.auditor.released.add(vm.id)
            await self._ask(lead, event, key_of(vm))

        server.spawn(ask())
        return True

    async def _ask(self, lead: TermContext, event: ev.Event, key: GroupKey | None) -> None:
        try:
            await lead.shard.ask(event, key=key)
        except DeposedError:
            self.world.count("request lost with its leader")

    # ---- backups

    def restore_backup(self) -> bool:
        """A backup is made now and restored a while later, once in a run. Counted when it is restored."""
        world = self.world
        if self._backup is None and not world.servers_down and world.auditor.tail:
            self._backup = backup.take(world)
            world.later(self.r.uniform(4.0, 20.0), self._restore)
        return False

    def _restore(self) -> None:
        if self._backup is not None and not self.world.faults_stopped and not self._restored:
            self._restored = True
            self.world.count("fault restore_backup")
            backup.restore(self.world, self._backup)
