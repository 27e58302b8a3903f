"""Random schedules of faults against whole servers on Google Cloud.

    make gcp-schedules COUNT=300 START=0 INSTANCES=20

A schedule resizes a group, loses replies and requests, fails polls, throttles, lets operations fail inside a success,
exhausts subnets and types, takes spot VMs back and crashes the server. Then the faults end, and the stand-in's own books must
show exactly the VMs of the records, each made once.
"""

import argparse
import asyncio
import concurrent.futures
import functools
import logging
import multiprocessing
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from component.aws.schedules import impatient
from component.gcp.gcp_servers import GcpServers, counted, gcp_servers
from support.gcp.compute import BROKEN, NO_ADDRESS, QUOTA, STOCK_OUT, STOCK_OUT_DETAILS, Rules
from support.gcp.stand_in import INTERNAL, INTERNAL_AFTER, LOST_REPLY, LOST_REQUEST, OUTAGE, THROTTLED

STEPS = 8
MOST_SECONDS = 4.0  # twice the time that an operation takes; listings of the stand-in do not lag
LOST = (LOST_REPLY, LOST_REPLY, INTERNAL_AFTER, LOST_REQUEST, INTERNAL, THROTTLED, None)
LOOK = (OUTAGE, INTERNAL, THROTTLED, None)
OPERATION_ERRORS = (STOCK_OUT, STOCK_OUT_DETAILS, NO_ADDRESS, QUOTA, BROKEN, "")


class Schedule:
    def __init__(self, world: GcpServers, seed: int, size: int) -> None:
        self.world, self.most = world, size
        self.random = random.Random(seed)
        self.size = size
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        await self.world.resize(self.size)
        await self.world.start("a")
        await self.world.start("b", lead=False)
        acts: list[Callable[[], Awaitable[None]]] = [
            self._resize,
            self._resize,
            self._spoil_calls,
            self._spoil_calls,
            self._spoil_operations,
            self._exhaust,
            self._slow,
            self._storm,
            self._outage,
            self._crash,
        ]
        await self._spoil_calls()
        for _ in range(STEPS):
            act = self.random.choice(acts)
            self.counts[act.__name__] += 1
            await act()
            await asyncio.sleep(self.random.uniform(0.05, 0.4))
        self.world.stand_in.heal()
        self.world.compute.rules.heal()
        self.world.compute.rules.insert = self.world.compute.rules.delete = 0.02
        await self.world.settle(self.size, seconds=240.0)

    async def _resize(self) -> None:
        self.size = self.random.randint(0, self.most)
        await self.world.resize(self.size)

    async def _spoil_calls(self) -> None:
        r = self.random
        for method, faults, most in (
            ("instances.insert", LOST, 10),
            ("instances.delete", LOST, 8),
            ("zoneOperations.wait", LOOK, 8),
            ("instances.get", LOOK, 4),
            ("instances.list", LOOK, 2),
            ("zoneOperations.list", LOOK, 2),
        ):
            self.world.stand_in.spoil(f"compute.{method}", *(r.choice(faults) for _ in range(r.randint(0, most))))

    async def _spoil_operations(self) -> None:
        drawn = [self.random.choice(OPERATION_ERRORS) for _ in range(self.random.randint(1, 8))]
        self.world.compute.rules.operation_errors += drawn

    async def _exhaust(self) -> None:
        what = self.random.choice(("subnet-1", "subnet-2", "e2-small", "e2-medium"))
        self.world.compute.rules.capacity[what] = self.random.randint(0, 4)

    async def _slow(self) -> None:
        """Inserts and deletes take a while, so that they meet."""
        self.world.compute.rules.insert = self.random.uniform(0.0, 2.0)
        self.world.compute.rules.delete = self.random.uniform(0.0, 2.0)

    async def _storm(self) -> None:
        """Spot VMs are taken back, many at once."""
        spot = sorted(
            name
            for name, vm in self.world.compute.living().items()
            if vm.get("scheduling", {}).get("provisioningModel") == "SPOT" and vm["status"] == "RUNNING"
        )
        for name in self.random.sample(spot, min(len(spot), self.random.randint(1, 8))):
            self.world.interrupt(name)

    async def _outage(self) -> None:
        self.world.stand_in.always["*"] = OUTAGE
        await asyncio.sleep(self.random.uniform(0.2, 1.0))
        self.world.stand_in.always.clear()

    async def _crash(self) -> None:
        """At once, with calls in flight; the standby takes over."""
        names = [name for name, server in self.world.servers.items() if server.lead is not None]
        if names:
            await self.world.servers[names[0]].crash()
            await self.world.start(names[0], lead=False)


async def run_seed(seed: int, size: int) -> Counter[str]:
    """Raises AssertionError with what is wrong."""
    with tempfile.TemporaryDirectory(prefix="nst-gcp-") as folder:
        async with gcp_servers(Path(folder), Rules(page_size=20)) as world:
            schedule = Schedule(world, seed, size)
            await schedule.run()
            return schedule.counts + counted(world)


Run = Callable[[int, int], Coroutine[Any, Any, Counter[str]]]  # of a seed and a size


def run_alone(run: Run, size: int, seed: int) -> tuple[Counter[str], str]:
    """In a process of its own: servers read their cloud from the environment. Gives what was wrong."""
    logging.disable(logging.ERROR)
    try:
        with impatient():
            return asyncio.run(run(seed, size)), ""
    except Exception as problem:
        return Counter(), f"{problem!r}\n{traceback.format_exc(limit=3)}"


def run_all(seeds: range, beside: int, run: Run, size: int) -> int:
    failed: list[int] = []
    counts: Counter[str] = Counter()
    began = time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(beside, mp_context=multiprocessing.get_context("spawn")) as pool:
        for seed, (counted_here, wrong) in zip(
            seeds, pool.map(functools.partial(run_alone, run, size), seeds), strict=True
        ):
            counts.update(counted_here)
            counts["schedules"] += 1
            if wrong:
                failed.append(seed)
                print(f"seed {seed}: {wrong}", flush=True)
            if counts["schedules"] % 10 == 0:
                print(f"{counts['schedules']} of {len(seeds)}, failed: {failed}", flush=True)
    print(f"failed seeds: {failed or 'none'}; {time.monotonic() - began:.0f} s; {dict(counts)}", flush=True)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--size", type=int, default=20, help="the most instances of the group")
    parser.add_argument(
        "--beside", type=int, default=6, help="how many schedules run at the same time: they mostly wait"
    )
    options = parser.parse_args()
    return run_all(range(options.first, options.first + options.count), options.beside, run_seed, options.size)


if __name__ == "__main__":
    sys.exit(main())
