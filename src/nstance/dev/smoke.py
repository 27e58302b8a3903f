"""The test of `make dev-once`: a crashed agent is replaced, and a crash of the leader costs no agent.

It fails if an agent does not connect or lacks files, if the replacement is decided late, or if a failover ends an agent.
Such an installation is broken even if its records look fine.
"""

import os
import signal
from typing import TYPE_CHECKING

from nstance.dev.errors import DevError
from nstance.model.instance import State

if TYPE_CHECKING:
    from nstance.dev.run import Dev

DECISION_SECONDS = 2.0  # from the crash of an agent to the decision, which usually takes milliseconds


async def test(dev: "Dev") -> None:
    """Raises DevError."""
    started = dev.clock.monotonic()
    await dev.until("a healthy shard", dev.observer.is_healthy)
    dev.screen.say(f"all instances are running, {dev.clock.monotonic() - started:.2f} s after the start")
    await _crash_agent(dev)
    await _crash_leader(dev)


async def _crash_agent(dev: "Dev") -> None:
    before = set(dev.observer.first_seen)
    victim, pid = next(iter(dev.observer.agents().items()))
    dev.screen.say(f"kill -9 {pid}: the agent of {victim} and its VM crash")
    killed = dev.clock.wall()
    os.kill(pid, signal.SIGKILL)
    await dev.until(f"a replacement of {victim}", lambda: dev.observer.find_replacement(victim, before) is not None)
    id = dev.observer.find_replacement(victim, before)
    assert id is not None
    times = dev.observer.first_seen[id]
    steps = [
        f"{word} after {max(0.0, times[state] - killed):.3f} s"
        for state, word in ((State.PENDING, "decided"), (State.STARTING, "started"), (State.RUNNING, "registered"))
        if state in times
    ]
    dev.screen.say(f"replaced by {id}: {', '.join(steps)}")
    if min(times.values()) - killed > DECISION_SECONDS:
        raise DevError(f"expected the replacement to be decided within {DECISION_SECONDS:g} s, found the times above")


async def _crash_leader(dev: "Dev") -> None:
    leader, agents = dev.leader(), dev.observer.agents()
    dev.screen.say(f"kill -9 {leader.pid}: the leader crashes")
    leader.send(signal.SIGKILL)
    await dev.until(
        "another leader and a healthy shard", lambda: dev.observer.leader != leader.name and dev.observer.is_healthy()
    )
    if dev.observer.agents() != agents:
        raise DevError("expected all agents to survive the leader; see agent.log of the missing one")
    dev.screen.say(f"{dev.observer.leader} leads, and all {len(agents)} agents are connected to it")
