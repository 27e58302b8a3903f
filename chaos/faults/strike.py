"""The definition of a fault, and what several faults need.

A fault is a function that breaks something, waits and repairs it, also after an error. It counts what shows its effect
(`strike.proof`): a fault without an effect proves nothing. `touches` names what it breaks, so that two concurrent faults
never break the same thing.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from chaos.children import Child
from chaos.world import World

TAKEOVER_SECONDS = 30.0  # the lease is 15 s if the leader was the only server


@dataclass
class Strike:
    """One execution of a fault."""

    name: str
    began: float = field(default_factory=time.time)
    ended: float = float("inf")
    now: str = ""  # for the progress line
    proof: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


Act = Callable[[World, Strike], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    act: Act
    touches: frozenset[str]


FAULTS: dict[str, Fault] = {}


def fault(*touches: str) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        name = act.__name__
        FAULTS[name] = Fault(name, act, frozenset(touches))
        return act

    return register


async def wait_for_takeover(world: World, strike: Strike, epoch: int) -> None:
    with contextlib.suppress(TimeoutError):
        await world.until(lambda: world.lease()[0] > epoch, TAKEOVER_SECONDS, "another epoch")
        strike.proof["takeovers"] += world.lease()[0] - epoch


async def restart(world: World, child: Child, wait: float) -> None:
    await asyncio.sleep(wait)
    if not child.runs:
        child.start()


def healthy(world: World) -> list[str]:
    """IDs of registered, running VMs that were never harmed."""
    ids = [id for id in world.vms.running() if id not in world.harm]
    return [id for id in ids if (world.vms.root / id / "recv" / "motd").exists()]


def pick(world: World, count: int) -> list[str]:
    found = healthy(world)
    return world.rng.sample(found, min(count, len(found)))


def kill_some(world: World, strike: Strike, count: int) -> None:
    strike.proof["VMs killed"] += sum(world.kill(id) for id in pick(world, count))
