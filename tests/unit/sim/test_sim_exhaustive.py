"""The exhaustive run covers every call of its schedule."""

from nstance.sim.fault_model import WRITES
from nstance.sim.search import exhaustive
from nstance.sim.world import world


def test_every_call_of_the_schedule_fails_in_some_case() -> None:
    with world(exhaustive.SEED, exhaustive.SETUP) as w:
        exhaustive.play_schedule(w)
        writes = sum(w.counts[f"request {verb}"] for verb in WRITES)
        changes = w.counts["calls create"] + w.counts["calls delete"]
        assert not w.violations
    assert exhaustive.MAX_WRITES / 2 < writes <= exhaustive.MAX_WRITES
    assert exhaustive.MAX_CHANGES / 2 < changes <= exhaustive.MAX_CHANGES
