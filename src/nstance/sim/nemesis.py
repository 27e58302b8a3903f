"""Somebody who breaks things, at random, most of all around the leader."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from nstance.model import events as ev
from nstance.model.ids import DEFAULT_TENANT, GroupKey, GroupName, IdMaker, InstanceId, Kind, ShardId
from nstance.model.instance import State
from nstance.objects.journal import DeposedError
from nstance.pki import proof
from nstance.providers.port import CreateRequest, Scope, Status
from nstance.server.state.unknown_vms import key_of
from nstance.sim import backup
from nstance.sim.agents import SimAgent, key_pair
from nstance.sim.desired_groups import CLUSTER, SHARD, SUBNETS
from nstance.sim.desired_groups import key as group_key
from nstance.sim.operator_port import OperatorPort
from nstance.sim.server import SimServer
from nstance.sim.setup import FAULTS, Aim, limits
from nstance.v1 import registration_pb2

if TYPE_CHECKING:
    from nstance.sim.world import World

AT_THE_LEADER = 0.7
AIM_HITS = 0.5  # likelihood that a moment which is aimed at is struck
AIM_SHOTS = 6  # of each aim in one run
OURS = Scope(cluster=CLUSTER, shard=SHARD)
THEIRS = Scope(cluster=CLUSTER, shard=ShardId("sim-2"))


class Nemesis:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.r = world.random
        self._stripped: set[InstanceId] = set()
        self._shots: Counter[Aim] = Counter()
        self._backup: backup.Backup | None = None
        self._restored = False
        self._ids = IdMaker(wall=lambda: 1.6e9 + world.now, bits=self.r.getrandbits)

    async def run(self) -> None:
        world, faults = self.world, self.world.setup.faults
        weights = [FAULTS[name] for name in faults]
        until = world.now + world.setup.seconds
        world.on_moment = self.aim
        while True:
            wait = self.r.expovariate(1 / world.setup.every)
            if world.now + wait >= until:
                break
            await asyncio.sleep(wait)
            if faults:
                self.strike(self.r.choices(faults, weights)[0])
        await asyncio.sleep(max(0.0, until - world.now))

    def aim(self, moment: str) -> None:
        """Something has just happened: a fault that is aimed at such moments follows, at once or within a few seconds."""
        for aim in self.world.setup.aims:
            if aim.moment == moment and self._shots[aim] < AIM_SHOTS and self.r.random() < AIM_HITS:
                self._shots[aim] += 1
                delay = self.r.uniform(0.0, self.r.choice((0.2, 1.0, 4.0)))
                for fault in aim.faults:
                    self.world.later(delay, self._shoot, moment, fault)
                    delay += self.r.uniform(0.0, 1.5)

    def _shoot(self, moment: str, fault: str) -> None:
        if not self.world.quiet:
            self.world.count(f"aimed {fault} after {moment}")
            self.strike(fault)

    def strike(self, name: str) -> None:
        fault: Callable[[], object] = getattr(self, name)
        self.world.log("fault", name)
        if fault() is not False:
            self.world.count(f"fault {name}")
            self.world.count("faults")

    # ---- whom

    def server(self) -> SimServer:
        leader = self.world.leader()
        if leader is not None and self.r.random() < AT_THE_LEADER:
            return leader
        return self.r.choice(self.world.servers)

    def agent(self) -> SimAgent | None:
        able = [a for a in self.world.agents() if a.line is not None and a.idle_since is None]
        return self.r.choice(able) if able else None

    def vm(self) -> InstanceId | None:
        """One of ours that runs."""
        mine = [
            v.id
            for v in self.world.cloud.vms()
            if v.status in (Status.RUNNING, Status.PENDING) and v.id not in self.world.auditor.untouchable
        ]
        return self.r.choice(mine) if mine else None

    # ---- servers, storage, clocks

    def kill(self) -> bool:
        server = self.server()
        alive = server.machine.alive
        self.world.kill(server, power=self.r.random() < 0.8)
        return alive

    def stop(self) -> None:
        self.world.stop(self.server(), self.r.uniform(0.3, 8.0))

    def freeze(self) -> None:
        self.world.stop(self.server(), self.r.uniform(0.3, 8.0), freeze=True)

    def resign(self) -> bool:
        leader = self.world.leader()
        if leader is None:
            return False
        self.world.resign(leader)
        return True

    def cut_storage(self) -> None:
        name, cut = self.server().name, self.world.storage_faults.cut
        cut[name] = cut.get(name, 0) + 1

        def heal() -> None:
            if name in cut:
                cut[name] -= 1

        self.world.later(self.r.choice((self.r.uniform(0.5, 6.0), self.r.uniform(6.0, 40.0))), heal)

    def brown_storage(self) -> None:
        self.world.storage_faults.brown_until = self.world.now + self.r.uniform(0.5, 4.0)

    def cut_peers(self) -> None:
        pair = frozenset(s.name for s in self.r.sample(self.world.servers, 2))
        self.world.network.cut.add(pair)
        self.world.later(self.r.uniform(0.5, 8.0), self.world.network.cut.discard, pair)

    def reject_peers(self) -> None:
        """To one server another one seems dead (connection reset, port refused) although it lives: a firewall answers."""
        here, there = self.r.sample(self.world.servers, 2)
        pair = (here.name, there.name)
        self.world.network.rejected.add(pair)
        self.world.later(self.r.uniform(0.5, 8.0), self.world.network.rejected.discard, pair)

    def slow_storage(self) -> None:
        fault_model = self.world.storage_faults
        fault_model.slow = self.r.choice((0.8, 2.0, 5.0))

        def heal() -> None:
            fault_model.slow = 0.0

        self.world.later(self.r.uniform(5.0, 30.0), heal)

    def jump_clock(self) -> None:
        self.server().machine.jump(self.r.choice((-1.0, 1.0)) * self.r.choice((2.0, 60.0, 3600.0)))

    # ---- agents

    def cut_agent(self) -> bool:
        agent = self.agent()
        if agent is None:
            return False
        agent.fall_silent(self.r.choice((2.0, 8.0, 12.0, 40.0)))
        return True

    def cut_most_agents(self) -> bool:
        """Some, most or all at once (F59)."""
        agents = [a for a in self.world.agents() if a.line is not None]
        if len(agents) < 2:
            return False
        seconds = self.r.choice((4.0, 12.0, 30.0))
        for agent in self.r.sample(agents, self.r.randint(max(2, len(agents) // 2), len(agents))):
            agent.fall_silent(seconds * self.r.uniform(0.8, 1.2))
        return True

    def shut_agents_out(self) -> None:
        """Whoever is connected stays; whoever is not can register and then not connect: a firewall, or a wrong address."""
        self.world.agents_shut_out_until = self.world.now + self.r.choice((5.0, 20.0, 60.0))

    def restart_agent(self) -> bool:
        agent = self.agent()
        if agent is None:
            return False
        agent.restart(self.r.choice((0.5, 4.0, 20.0)))
        return True

    def forget_agent(self) -> bool:
        """F61: the state directory is lost, and the nonce is spent."""
        agent = self.agent()
        if agent is None or any(a.forgetful and a.alive for a in self.world.agents()):
            return False  # several at once could never come back: that is mass silence, and ends with a person
        agent.forget()
        return True

    def replay_nonce(self) -> bool:
        """B7: somebody else presents a nonce that was used."""
        used = [a for a in self.world.agents() if a.registered]
        door = self.world.find_door()
        if not used or door is None:
            return False
        agent = self.r.choice(used)
        key, public, pem = key_pair(4000 + self.r.randrange(50))
        request = registration_pb2.RegisterAgentRequest(
            nonce=agent.request.nonce,
            public_key_pem=pem,
            proof=proof.prove_registration(key, cluster=CLUSTER, nonce=agent.request.nonce),
        )

        async def thief() -> None:
            try:
                told = await door.register(request, "203.0.113.7")
            except TimeoutError:
                return
            if told.startswith("-----"):
                self.world.auditor.acknowledged(agent.id, public)

        self.world.start(thief())
        return True

    def clone_agent(self) -> bool:
        """A copied identity directory: two live agents take the connection from each other."""
        agent = self.agent()
        if agent is None or agent.id in self.world.auditor.cloned:
            return False
        self.world.auditor.cloned.add(agent.id)
        agent.copy_identity(self.r.choice((1.0, 8.0, 20.0)))
        return True

    def notice(self) -> bool:
        agent = self.agent()
        if agent is None:
            return False
        kind = self.r.choice(("SPOT_TERMINATION", "SPOT_TERMINATION", "SPOT_REBALANCE", "SHUTDOWN"))
        seconds = self.r.choice((5.0, 20.0))
        if agent.tell(kind, seconds) and kind != "SPOT_REBALANCE" and self.r.random() < 0.8:
            self.world.later(seconds, self._take, agent.id)
        return True

    def _take(self, id: InstanceId) -> None:
        if id not in self.world.auditor.untouchable and not self.world.quiet:
            self.world.cloud.destroy(id)

    # ---- the cloud

    def destroy_vm(self) -> bool:
        id = self.vm()
        if id is None:
            return False
        self.world.cloud.destroy(id)
        return True

    def stop_vm(self) -> bool:
        id = self.vm()
        if id is None:
            return False
        self.world.cloud.stop(id)
        return True

    def strip_tags(self) -> bool:
        """F53: the record wins, and what no record knows is nobody's from then on."""
        id, auditor = self.vm(), self.world.auditor
        if id is None:
            return False
        record = auditor.fold.get(id)
        if record is not None and [v.provider_id for v in self.world.cloud.truth(id)] != [record.provider_id]:
            return False  # a double would be nobody's
        self.world.cloud.strip_tags(id)
        self._stripped.add(id)
        if auditor.planted.pop(id, id) is None and id not in auditor.fold:
            if self.world.desired_groups.unknown == "hold":
                auditor.untouchable[id] = "its tags were stripped"
            else:
                # A listing is a picture of the past: the delete that follows from it may be on its way.
                auditor.anybodys.add(id)
        elif id in auditor.lost and id not in auditor.fold:
            auditor.anybodys.add(id)  # no listing shows it any more
        return True

    def _plant(self, scope: Scope) -> InstanceId:
        world, id = self.world, self._ids.make(Kind("sim"))
        request = CreateRequest(
            id=id, tenant=DEFAULT_TENANT, group=GroupName("web"), kind=Kind("sim"), template="?", created=0.0
        )
        world.planting = True
        try:
            world.cloud.create(scope, request)
        finally:
            world.planting = False
        return id

    def plant_orphan(self) -> None:
        """Complete tags of ours, and no record: to be held, or to be deleted if the configuration says so."""
        id = self._plant(OURS)
        self.world.auditor.planted[id] = None

    def restore_backup(self) -> bool:
        """First a backup is made; the next time, a while later, it is restored. Once in a run."""
        world = self.world
        if self._backup is None:
            if world.servers_down or not world.auditor.tail:
                return False
            self._backup = backup.take(world)
            world.later(self.r.uniform(4.0, 20.0), self._restore)
        return False

    def _restore(self) -> None:
        if self._backup is not None and not self.world.quiet and not self._restored:
            self._restored = True
            self.world.count("fault restore_backup")
            backup.restore(self.world, self._backup)

    def decide_unknown(self) -> bool:
        """A person adopts or releases a VM that is held."""
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
            try:
                await lead.shard.ask(event, key=key_of(vm))
            except DeposedError:
                self.world.count("request lost with its leader")

        server.spawn(ask())
        return True

    def plant_stranger(self) -> None:
        """F53, F54: a VM without tags, or of another shard. Nobody may touch it."""
        if self.r.random() < 0.5:
            id = self._plant(THEIRS)
            self.world.auditor.untouchable[id] = "it belongs to another shard"
        else:
            id = self._plant(OURS)
            self.world.cloud.strip_tags(id)
            self.world.auditor.untouchable[id] = "it has no tags"

    def plant_double(self) -> bool:
        id = self.vm()
        if id is None or id in self.world.auditor.planted or id in self._stripped:
            return False
        self.world.cloud.duplicate_vm(id)
        return True

    def throttle(self) -> None:
        self.world.provider_faults.throttled_until = self.world.now + self.r.uniform(1.0, 8.0)

    def brown_provider(self) -> None:
        self.world.provider_faults.brown_until = self.world.now + self.r.uniform(1.0, 8.0)

    def lose_capacity(self) -> None:
        for subnet in self.r.sample(SUBNETS, self.r.choice((1, 1, 2))):
            self.world.provider_faults.full[subnet] = self.world.now + self.r.uniform(3.0, 20.0)

    def lie_in_listing(self) -> None:
        self.world.provider_faults.lying_until = self.world.now + self.r.uniform(5.0, 25.0)

    # ---- people

    def _change(self, **fields: Any) -> None:
        world = self.world
        name = self.r.choice(list(world.desired_groups.groups))
        groups = dict(world.desired_groups.groups)
        groups[name] = dataclasses.replace(groups[name], **fields)
        world.tell(dataclasses.replace(world.desired_groups, groups=groups))

    def scale(self) -> None:
        self._change(size=self.r.choice((0, 1, 2, 3, 4, 5)))

    def change_template(self) -> None:
        self._change(generation=self.r.randrange(4))

    def spoil_template(self) -> None:
        """A revision whose instances never become ready."""
        generation = 100 + len(self.world.bad_generations)
        self.world.bad_generations.add(generation)
        self._change(generation=generation)

    def change_files(self) -> None:
        """All instances of a group get new files at once, and none is ready until it has them."""
        self._change(files=self.r.randrange(1000))

    def change_limits(self) -> None:
        self._change(**limits(self.r))

    def fail_checks(self) -> bool:
        agents = [a for a in self.world.agents() if a.alive and a.registered]
        if not agents:
            return False
        for agent in self.r.sample(agents, self.r.choice((1, 1, len(agents)))):
            agent.fail_checks(True)
            self.world.later(self.r.choice((1.0, 6.0, 30.0)), agent.fail_checks, False)
        return True

    def lose_secret(self) -> None:
        """Files cannot be made for a while: who has none stays without."""
        self.world.secrets._values.clear()
        self.world.later(self.r.choice((3.0, 15.0, 60.0)), self.world.restore_secrets)

    def roll_back(self) -> bool:
        return self._steer(lambda office, name: office.roll_back(name))

    def resume_rollout(self) -> bool:
        return self._steer(lambda office, name: office.resume(name))

    def _steer(self, act: Callable[[OperatorPort, GroupKey], Coroutine[Any, Any, None]]) -> bool:
        server = self.world.leader()
        office = server.office if server is not None else None
        if server is None or office is None:
            return False
        name = self.r.choice(list(self.world.desired_groups.groups))
        server.spawn(act(office, group_key(name)))
        return True

    def break_config(self) -> None:
        """An invalid configuration, put right a few seconds later (invariant 9)."""
        self.world.put_config(self.r.choice((b"{", b"", b'{"cluster": {"id": "other"}}', b"\xff\xfe")))
        self.world.later(self.r.uniform(1.0, 6.0), lambda: self.world.put_config(self.world.desired_groups.text()))

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
        name = self.r.choice(list(self.world.desired_groups.groups))

        async def ask() -> None:
            self.world.auditor.requested.add(id)
            key = group_key(name) if isinstance(event, ev.InstanceRequested) else None
            try:
                await lead.shard.ask(event, key=key)
            except DeposedError:
                self.world.count("request lost with its leader")

        server.spawn(ask())
        return True
