"""2,000 agents connect at once over real TLS, and the leader keeps its lease."""

import json
import subprocess
import sys

import pytest
from bench.storm import GROUPS, SIZE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

UNHARMED = {"connected": GROUPS * SIZE, "leader_changes": 0, "creates": 0, "deletes": 0}


def test_two_thousand_agents_at_once_do_not_cost_the_leader_its_lease() -> None:
    """With a standby, which would claim after two seconds without a heartbeat. A busy machine may delay the leader for so
    long once; agents that are let in all at once do so each time."""
    storms: list[dict[str, int]] = []
    while len(storms) < 3 and UNHARMED not in storms:
        result = subprocess.run([sys.executable, "-m", "bench.storm"], stdout=subprocess.PIPE, check=True, timeout=290)
        storms.append(json.loads(result.stdout))
    assert UNHARMED in storms, storms
