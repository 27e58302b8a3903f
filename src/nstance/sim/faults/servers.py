"""Faults of servers, their storage, their network and their clocks."""

from nstance.sim.faults.target import FaultGroup


class ServerFaults(FaultGroup):
    def kill(self) -> bool:
        server = self.pick_server()
        alive = server.machine.alive
        self.world.kill(server, power=self.r.random() < 0.8)
        return alive

    def stop(self) -> None:
        self.world.stop(self.pick_server(), self.r.uniform(0.3, 8.0))

    def freeze(self) -> None:
        self.world.stop(self.pick_server(), self.r.uniform(0.3, 8.0), freeze=True)

    def resign(self) -> bool:
        leader = self.world.leader()
        if leader is None:
            return False
        self.world.resign(leader)
        return True

    def cut_storage(self) -> None:
        name, cut = self.pick_server().name, self.world.storage_faults.cut
        cut[name] = cut.get(name, 0) + 1

        def heal() -> None:
            if name in cut:
                cut[name] -= 1

        self.world.later(self.r.choice((self.r.uniform(0.5, 6.0), self.r.uniform(6.0, 40.0))), heal)

    def brown_storage(self) -> None:
        self.world.storage_faults.brown_until = self.world.now + self.r.uniform(0.5, 4.0)

    def slow_storage(self) -> None:
        faults = self.world.storage_faults
        faults.slow = self.r.choice((0.8, 2.0, 5.0))
        self.world.later(self.r.uniform(5.0, 30.0), setattr, faults, "slow", 0.0)

    def cut_peers(self) -> None:
        pair = frozenset(s.name for s in self.r.sample(self.world.servers, 2))
        self.world.network.cut.add(pair)
        self.world.later(self.r.uniform(0.5, 8.0), self.world.network.cut.discard, pair)

    def reject_peers(self) -> None:
        """A firewall answers for a live server with resets, to one other server: it seems dead there."""
        here, there = self.r.sample(self.world.servers, 2)
        pair = (here.name, there.name)
        self.world.network.rejected.add(pair)
        self.world.later(self.r.uniform(0.5, 8.0), self.world.network.rejected.discard, pair)

    def jump_clock(self) -> None:
        self.pick_server().machine.jump(self.r.choice((-1.0, 1.0)) * self.r.choice((2.0, 60.0, 3600.0)))
