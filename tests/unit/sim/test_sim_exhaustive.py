"""The small scope leaves nothing out of its own story."""

from nstance.sim.fault_model import WRITES
from nstance.sim.search import exhaustive
from nstance.sim.world import world


def test_every_call_of_the_story_is_bent() -> None:
    with world(exhaustive.SEED, exhaustive.SETUP) as w:
        exhaustive.story(w)
        writes = sum(w.counts[f"request {verb}"] for verb in WRITES)
        changes = w.counts["calls create"] + w.counts["calls delete"]
        assert not w.violations
    assert exhaustive.CALLS / 2 < writes <= exhaustive.CALLS
    assert exhaustive.CHANGES / 2 < changes <= exhaustive.CHANGES
