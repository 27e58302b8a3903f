"""Plays one seed from its first second to its verdict."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from nstance.sim.faults.nemesis import Nemesis
from nstance.sim.faults.themes import draw
from nstance.sim.setup import Setup
from nstance.sim.world import world

SETTLE_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Verdict:
    seed: int
    violations: tuple[str, ...]
    hash: str
    counts: Counter[str]
    virtual_seconds: float
    seconds: float


def play(
    seed: int,
    setup: Setup | None = None,
    *,
    servers: int | None = None,
    on_trace: Callable[[str], None] | None = None,
) -> Verdict:
    began = time.process_time()
    with world(seed, setup or draw(seed, servers=servers), on_trace=on_trace) as w:
        w.begin()
        w.run(Nemesis(w).run())
        w.stop_faults()
        w.settle(SETTLE_SECONDS)
        return Verdict(seed, tuple(w.violations), w.hash(), Counter(w.counts), w.now, time.process_time() - began)
