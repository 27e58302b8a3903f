"""What one fault is, and what several of them need.

A fault is a function that breaks something, waits, and cures it again, whatever happens. It writes down what shows that it
mattered (`strike.proof`): a fault that nobody noticed proves nothing. `touches` says what it breaks, so that two faults
at a time never work on the same thing.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from chaos.children import Child
from chaos.world import World

TAKEN_OVER_WITHIN = 30.0  # with a lease of 15 s, if the leader was alone


@dataclass
class Strike:
    """One fault, from its beginning to its cure."""

    name: str
    began: float = field(default_factory=time.time)
    ended: float = float("inf")
    now: str = ""  # in words, for whoever watches
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
    def note(act: Act) -> Act:
        name = act.__name__
        FAULTS[name] = Fault(name, act, frozenset(touches))
        return act

    return note


async def taken_over(world: World, strike: Strike, epoch: int) -> None:
    with contextlib.suppress(TimeoutError):
        await world.until(lambda: world.lease()[0] > epoch, TAKEN_OVER_WITHIN, "another epoch")
        strike.proof["takeovers"] += world.lease()[0] - epoch


async def restart(world: World, child: Child, wait: float) -> None:
    await asyncio.sleep(wait)
    if not child.runs:
        child.start()


def healthy(world: World) -> list[str]:
    """Registered, running, and never harmed."""
    ids = [id for id in world.vms.running() if id not in world.harm]
    return [id for id in ids if (world.vms.root / id / "recv" / "motd").exists()]


def some(world: World, count: int) -> list[str]:
    found = healthy(world)
    return world.rng.sample(found, min(count, len(found)))


def kill_some(world: World, strike: Strike, count: int) -> None:
    strike.proof["VMs killed"] += sum(world.kill(id) for id in some(world, count))
