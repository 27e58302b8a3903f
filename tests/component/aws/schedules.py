"""Random schedules of faults against whole servers on AWS.

    make aws-schedules COUNT=500 INSTANCES=40

A schedule resizes a group, loses replies and requests, throttles, hides new instances, exhausts subnets, reclaims spot
instances and crashes the server. Then the faults end, and moto's own books must show exactly the VMs of the records.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from unittest import mock

from component.aws.aws_servers import AwsServers, aws_servers
from nstance.core import creating, draft, follow_up, observe
from nstance.dev.aws.moto import find_moto, run_moto
from nstance.dev.aws.rules import INTERNAL, LOST_REPLY, LOST_REQUEST, OUTAGE, QUOTA, THROTTLED, Fault, Offer, Rules
from nstance.tasks.backoff import Backoff
from support.moto_server import KEYS, reset

STEPS = 8
CAPACITY = Fault("InsufficientInstanceCapacity", "no capacity", 500)
NO_ADDRESS = Fault("InsufficientFreeAddressesInSubnet", "no free address", 400)
CREATE_FAULTS = (LOST_REPLY, LOST_REPLY, LOST_REPLY, LOST_REQUEST, INTERNAL, THROTTLED, CAPACITY, NO_ADDRESS, QUOTA)
DELETE_FAULTS = (LOST_REPLY, LOST_REPLY, LOST_REQUEST, INTERNAL, THROTTLED)
LOOK_FAULTS = (LOST_REPLY, INTERNAL, THROTTLED)


# The patience of the decisions, shorter by the same measure as the stand-in's lag: 4 s instead of a minute.
PATIENCE = (
    (draft, "ABSENCE_CERTAIN_AFTER_SECONDS", 8.0),
    (follow_up, "ABSENCE_CERTAIN_AFTER_SECONDS", 8.0),
    (observe, "ABSENCE_CERTAIN_AFTER_SECONDS", 8.0),
    (follow_up, "CHECK_DELETED_SECONDS", 1.0),
    (follow_up, "DELETE_REPEAT_SECONDS", 4.0),
)


@contextlib.contextmanager
def impatient(most: float = 8.0) -> Iterator[None]:
    """`most`: seconds that nothing takes longer than, twice the stand-in's lag."""
    with contextlib.ExitStack() as stack:
        for module, name, seconds in PATIENCE:
            stack.enter_context(mock.patch.object(module, name, min(seconds, most)))
        for name in ("RETRY", "BACKOFF"):
            stack.enter_context(mock.patch.object(creating, name, Backoff(1.0, min(4.0, most))))
        yield


class Schedule:
    def __init__(self, world: AwsServers, seed: int, size: int) -> None:
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
            self._hide,
            self._exhaust,
            self._storm,
            self._outage,
            self._crash,
        ]
        await self._spoil_calls()
        for _ in range(STEPS):
            act = self.random.choice(acts)
            self.counts[act.__name__] += 1
            await act()
            await asyncio.sleep(self.random.uniform(0.05, 0.6))
        self._heal()
        await self.world.settle(self.size)

    def _heal(self) -> None:
        rules = self.world.stand_in.rules
        rules.heal()
        rules.capacity.clear()
        rules.visible_after = 0.0

    async def _resize(self) -> None:
        self.size = self.random.randint(0, self.most)
        await self.world.resize(self.size)

    async def _spoil_calls(self) -> None:
        rules, r = self.world.stand_in.rules, self.random
        for action, faults, most in (
            ("RunInstances", CREATE_FAULTS, 12),
            ("TerminateInstances", DELETE_FAULTS, 8),
            ("DescribeInstances", LOOK_FAULTS, 2),
        ):
            drawn = [r.choice(faults) for _ in range(r.randint(0, most))]
            rules.add(action, *drawn)
            self.counts.update(
                f"{action} {fault.code or ('lost reply' if fault.after_effect else 'lost')}" for fault in drawn
            )

    async def _hide(self) -> None:
        self.world.stand_in.rules.visible_after = self.random.uniform(0.0, 4.0)

    async def _exhaust(self) -> None:
        subnet = self.random.choice(self.world.subnets)
        self.world.stand_in.rules.capacity[Offer(subnet=subnet)] = self.random.randint(0, 5)

    async def _storm(self) -> None:
        """Spot instances are reclaimed, many at once."""
        existing = sorted(await self.world.stand_in.instances.existing())
        for instance in self.random.sample(existing, min(len(existing), self.random.randint(1, 10))):
            await self.world.interrupt(instance)

    async def _outage(self) -> None:
        self.world.stand_in.rules.outages["*"] = OUTAGE
        await asyncio.sleep(self.random.uniform(0.2, 1.5))
        self.world.stand_in.rules.outages.clear()

    async def _crash(self) -> None:
        """At once, with calls in flight; the standby takes over."""
        names = [name for name, server in self.world.servers.items() if server.lead is not None]
        if names:
            await self.world.servers[names[0]].crash()
            await self.world.start(names[0], lead=False)


async def run_seed(seed: int, size: int, url: str = "") -> Counter[str]:
    """Raises AssertionError with what is wrong."""
    with tempfile.TemporaryDirectory(prefix="nst-aws-") as folder:
        async with aws_servers(Path(folder), Rules(page_size=20, remembers_listings=True), url=url) as world:
            schedule = Schedule(world, seed, size)
            await schedule.run()
            launched = world.stand_in.books.count("RunInstances")
            return schedule.counts + Counter({"RunInstances calls": launched, "VMs created": len(world._ids)})


async def _run_all(seeds: range, size: int, beside: int) -> int:
    failed: list[int] = []
    counts: Counter[str] = Counter()
    waiting, began = iter(seeds), time.monotonic()

    async def work(url: str) -> None:
        for seed in waiting:
            await asyncio.to_thread(reset, url)
            try:
                counts.update(await run_seed(seed, size, url))
            except Exception as problem:
                failed.append(seed)
                print(f"seed {seed}: {problem!r}", flush=True)
                traceback.print_exc(limit=3)
            counts["schedules"] += 1
            if counts["schedules"] % 10 == 0:
                print(f"{counts['schedules']} of {len(seeds)}, failed: {failed}", flush=True)

    # The first schedule that ends would take the keys from those beside it.
    with mock.patch.dict(os.environ, KEYS), impatient(), contextlib.ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory(prefix="nst-moto-")) for _ in range(beside)]
        urls = [stack.enter_context(run_moto(find_moto(), Path(folder))) for folder in folders]
        await asyncio.gather(*map(work, urls))
    print(f"failed seeds: {failed or 'none'}; {time.monotonic() - began:.0f} s; {dict(counts)}", flush=True)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--size", type=int, default=60, help="the most instances of the group")
    parser.add_argument("--beside", type=int, default=3, help="how many schedules run at the same time")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # moto's processes end with it
    return asyncio.run(_run_all(range(options.first, options.first + options.count), options.size, options.beside))


if __name__ == "__main__":
    sys.exit(main())
