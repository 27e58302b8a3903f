"""What `make dev-once` tries: an agent dies and is replaced, the leader dies and nobody else does.

It fails when an agent does not connect or lacks files, when the replacement is decided late, or when a change of leader
costs an agent: such an installation is broken, although its records look fine.
"""

import os
import signal
from typing import TYPE_CHECKING

from nstance.model.ids import InstanceId
from nstance.model.instance import State

if TYPE_CHECKING:
    from nstance.dev.run import Dev

DECISION_SECONDS = 2.0  # from the death of an agent to the decision; usually it takes a few milliseconds


class Failed(Exception):
    """The message says what did not happen."""


async def test(dev: "Dev") -> None:
    """Raises Failed."""
    began = dev.clock.monotonic()
    await dev.until("a whole group", dev.story.whole)
    dev.screen.say(f"the group was whole {dev.clock.monotonic() - began:.2f} s after the start")
    await _replace_an_agent(dev)
    await _change_the_leader(dev)


async def _replace_an_agent(dev: "Dev") -> None:
    before = set(dev.story.lives)
    victim, pid = next(iter(dev.story.agents().items()))
    dev.screen.say(f"kill -9 {pid}: the agent of {victim} dies, and with it its VM")
    killed = dev.clock.wall()
    os.kill(pid, signal.SIGKILL)

    def replacement() -> InstanceId | None:
        new = [i for i, life in dev.story.lives.items() if i not in before and State.RUNNING in life.reached]
        return new[0] if new and victim not in dev.story.agents() and dev.story.whole() else None

    await dev.until(f"a replacement of {victim}", lambda: replacement() is not None)
    id = replacement()
    assert id is not None
    reached = dev.story.lives[id].reached
    parts = [
        f"{word} after {max(0.0, reached[state] - killed):.3f} s"
        for state, word in ((State.PENDING, "decided"), (State.STARTING, "started"), (State.RUNNING, "registered"))
        if state in reached
    ]
    dev.screen.say(f"replaced by {id}: {', '.join(parts)}")
    if min(reached.values()) - killed > DECISION_SECONDS:
        raise Failed(f"expected the replacement to be decided within {DECISION_SECONDS:g} s, see above")


async def _change_the_leader(dev: "Dev") -> None:
    leader, agents = dev.leader(), dev.story.agents()
    dev.screen.say(f"kill -9 {leader.pid}: the leader dies")
    leader.send(signal.SIGKILL)
    await dev.until("another leader and a whole group", lambda: dev.story.leader != leader.name and dev.story.whole())
    if dev.story.agents() != agents:
        raise Failed("expected every agent to outlive the leader; the agent.log of the one that ended says why")
    dev.screen.say(f"{dev.story.leader} leads, and all {len(agents)} agents are connected to it")
