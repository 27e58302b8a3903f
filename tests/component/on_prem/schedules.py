"""Random schedules of faults against whole servers on Proxmox and QEMU.

    make on-prem-schedules PROVIDER=proxmox COUNT=300 START=0 INSTANCES=4

A schedule resizes a group, loses calls and replies, takes a quorum and nodes away, locks VMs, fills the hosts, stops VMs
behind the provider's back and crashes the server. Then the faults end, and the provider's own books must show exactly the
VMs of the records, each once.
"""

import argparse
import asyncio
import functools
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from component.gcp.schedules import run_all
from component.on_prem.on_prem_servers import OnPremServers, on_prem_servers
from nstance.model.ids import InstanceId
from nstance.server.errors import FatalError
from support.eventually import eventually

STEPS = 8
MAX_CALLS = 400  # of a schedule: more is a loop


class Schedule:
    def __init__(self, world: OnPremServers, seed: int, most: int) -> None:
        self.world, self.most = world, most
        self.random = random.Random(seed)
        self.world.chance = random.Random(seed + 1)
        self.size = most
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        await self.world.resize(web=self.size)
        await self.world.start("a")
        await self.world.start("b", lead=False)
        acts: list[Callable[[], Awaitable[None]]] = [
            self._resize,
            self._resize,
            self._disturb,
            self._disturb,
            self._stop_vms,
            self._crash,
        ]
        await self._disturb()
        for _ in range(STEPS):
            act = self.random.choice(acts)
            self.counts[act.__name__] += 1
            await act()
            await asyncio.sleep(self.random.uniform(0.05, 0.5))
        self.world.loss = 0.0
        self.world.place.heal()
        await self.world.settle(self.size)
        assert self.world.calls.total() < MAX_CALLS, self.world.calls

    async def _resize(self) -> None:
        self.size = self.random.randint(0, self.most)
        await self.world.resize(web=self.size)

    async def _disturb(self) -> None:
        self.world.loss = self.random.choice((0.0, 0.2, 0.5))
        self.world.place.disturb(self.random)

    async def _stop_vms(self) -> None:
        """The hosts end some of them, at any moment of their lives."""
        living = sorted(self.world.place.books())
        for name in self.random.sample(living, min(len(living), self.random.randint(1, 2))):
            try:
                self.world.place.end_by_hand(InstanceId(name))
            except (AssertionError, StopIteration, ProcessLookupError):
                continue  # it is gone, or not there yet
            self.counts["stopped"] += 1

    async def _crash(self) -> None:
        """At once, with calls in flight; the standby takes over."""
        names = [name for name, server in self.world.servers.items() if server.lead is not None]
        if names:
            await self.world.servers[names[0]].crash()
            await eventually(lambda: self._restart(names[0]))

    async def _restart(self, name: str) -> bool:
        """A child that is about to become QEMU may still have the ports of the server that crashed."""
        try:
            await self.world.start(name, lead=False)
        except FatalError:
            return False
        return True


async def run_seed(provider: str, seed: int, size: int) -> Counter[str]:
    """Raises AssertionError with what is wrong."""
    with tempfile.TemporaryDirectory(prefix="nst-prem-") as folder:
        async with on_prem_servers(Path(folder), provider) as world:
            schedule = Schedule(world, seed, size)
            await schedule.run()
            return schedule.counts + world.calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("provider", choices=("proxmox", "qemu"))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--size", type=int, default=4, help="the most instances of the group")
    parser.add_argument("--beside", type=int, default=4, help="how many schedules run at the same time")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.count)
    return run_all(seeds, options.beside, functools.partial(run_seed, options.provider), options.size)


if __name__ == "__main__":
    sys.exit(main())
