"""Which agents are unresponsive, and when the fault is probably on the server's side.

Ping answers post no events, so the connection of an agent that looks unresponsive is checked first. Agents that have not
reconnected to a new leader yet, or that sent something while this process was stalled, are not unresponsive. When too
many are unresponsive at once (mass silence), the fault is probably here or in the network; afterwards the remaining ones
get the same time to reconnect as after a change of leaders. The traps: a dead connection without a reset ends long after
its agent, so time counts from the last byte; and an agent whose certificate has expired can never reconnect.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from nstance.clock import Clock
from nstance.core import liveness
from nstance.model import events as ev
from nstance.model.ids import InstanceId
from nstance.model.instance import Instance, State
from nstance.model.observation import Observation

log = logging.getLogger(__name__)

JUDGE_EVERY = 0.2
SOON = 0.75  # of suspect_after: by then every healthy agent was seen again
TICK = 1.0
DEAF = 1.0  # a tick that is so late means that the process or its machine was stalled


class Fleet(Protocol):
    """The shard's instances as they are now, and what is known of them."""

    @property
    def instances(self) -> Mapping[InstanceId, Instance]: ...

    @property
    def facts(self) -> Mapping[InstanceId, Observation]: ...

    def set_last_seen(self, id: InstanceId, at: float) -> None: ...


class AgentLiveness:
    def __init__(self, fleet: Fleet, *, clock: Clock, last_seen: Callable[[InstanceId], float | None]) -> None:
        """`last_seen`: when the agent's last byte came, on the monotonic clock; None if it was never connected."""
        self.listening_since = self._ticked = clock.steady()
        self.mass_silence = False
        self.doubt = False  # it may be a mass silence: some agents had no time to answer a ping yet
        self._fleet = fleet
        self._clock = clock
        self._last_seen = last_seen
        self._silent: dict[InstanceId, float] = {}  # last byte of agents without a connection
        self._awaited = {
            id for id, i in fleet.instances.items() if i.state is State.RUNNING
        }  # not reconnected in this term
        self._unanswered: set[InstanceId] = set()  # whose registration is not in the journal yet
        self._judged = float("-inf")
        self.reconnect_grace = liveness.reconnect_grace(len(self._awaited))

    def notice_deafness(self) -> None:
        """Call this every TICK. A server that was stalled could not see any agent."""
        now = self._clock.steady()
        if now > self._ticked + TICK + DEAF:
            log.warning("server was stalled", extra={"seconds": round(now - self._ticked, 1)})
            self.listening_since = now
        self._ticked = now

    def refresh(self, members: Iterable[InstanceId], now: float, patience: float) -> bool:
        """Reads the connections of agents that look unresponsive or will soon; returns whether one is. "Soon" avoids that a
        group of thousands wakes up for each agent alone."""
        quiet = False
        monotonic = self._clock.monotonic()
        early = now - SOON * patience
        known, unanswered = self._fleet.facts, self._unanswered
        for id in members:
            facts = known.get(id)
            if facts is None or (facts.agent.last_seen > early and id not in unanswered):
                continue
            if id in unanswered:
                self._fleet.set_last_seen(id, now)
            elif facts.agent.connected and self._fleet.instances[id].ended is None:  # ended instances do not matter
                self._learn(id, facts, now, monotonic)
                quiet |= now >= known[id].agent.last_seen + patience
        return quiet

    def _learn(self, id: InstanceId, facts: Observation, now: float, monotonic: float) -> None:
        last_seen = self._last_seen(id)
        if last_seen is not None:
            self._fleet.set_last_seen(id, max(facts.agent.last_seen, now - max(0.0, monotonic - last_seen)))

    def note(self, event: ev.Event) -> None:
        match event:
            case ev.AgentLost(id):
                instance, facts = self._fleet.instances.get(id), self._fleet.facts.get(id)
                if facts is not None and facts.agent.connected:
                    # Time counts from the last byte, not from the last check.
                    self._learn(id, facts, self._clock.steady(), self._clock.monotonic())
                if instance is not None and instance.state is State.RUNNING:
                    self._silent[id] = (
                        self._fleet.facts[id].agent.last_seen if id in self._fleet.facts else self._clock.steady()
                    )
            case ev.AgentConnected(id):
                self._silent.pop(id, None)
                self._unanswered.discard(id)
                if id in self._awaited:
                    self._awaited.discard(id)
                    elapsed = self._clock.steady() - self.listening_since
                    self.reconnect_grace = liveness.extend_grace(self.reconnect_grace, elapsed)
            case ev.VmChecked(id, ev.VmState.DOWN | ev.VmState.DELETED):
                self.forget(id)
            case _:
                pass

    def registering(self, id: InstanceId) -> None:
        """Its registration was accepted. It cannot connect before the journal has it and it is answered."""
        facts = self._fleet.facts.get(id)
        if facts is not None and facts.agent.awaiting_connection:
            self._unanswered.add(id)

    def registered(self, id: InstanceId) -> None:
        """It is answered now. From now on it counts as unresponsive until it connects, which it may never do."""
        if id in self._unanswered:
            self._unanswered.discard(id)
            now = self._clock.steady()
            self._fleet.set_last_seen(id, now)
            self._silent.setdefault(id, now)

    def forget(self, id: InstanceId) -> None:
        """It is not expected to connect any more."""
        self._unanswered.discard(id)
        self._silent.pop(id, None)
        self._awaited.discard(id)

    def judge(self, now: float, suspect_after: float, *, quiet: bool) -> str | None:
        """Detects a mass silence before agents could become suspect. Returns a message if that has changed. `quiet`: an agent
        is unresponsive on an open connection."""
        any_silent = quiet or self._silent or self._awaited or self.mass_silence
        if not any_silent:
            self.doubt = False
        if not any_silent or now < self._judged + JUDGE_EVERY:
            return None
        self._judged = now
        if self.mass_silence and now < self.listening_since + liveness.ANSWERED_SHARE * suspect_after:
            return None  # this server was stalled: that no agent is unresponsive yet proves nothing
        fleet = self._observe_fleet(now, liveness.ASKED_SHARE * suspect_after)
        verdict = liveness.judge_silence(fleet, suspect_after, before=self.mass_silence)
        self.doubt = verdict.doubtful
        if verdict.mass_silence == self.mass_silence:
            return None
        self.mass_silence = verdict.mass_silence
        if not verdict.mass_silence:
            # Agents that have not reconnected were cut off like the others: their time starts again.
            self.listening_since = now
            self.reconnect_grace = max(self.reconnect_grace, liveness.reconnect_grace(verdict.silent))
            return "mass silence ended: enough agents have reconnected"
        return (
            f"{verdict.silent} of {fleet.agents} agents are unresponsive at once: the fault is probably here or in the "
            "network, no unresponsive instance is replaced until they return"
        )

    def _observe_fleet(self, now: float, seconds: float) -> liveness.Fleet:
        """`seconds`: connections that were active since then are left out."""
        lost = {id for id in self._silent.keys() | self._awaited if not self._can_return(id)}
        return liveness.Fleet(
            now=now,
            monotonic=self._clock.monotonic(),
            listening_since=self.listening_since,
            reconnect_grace=self.reconnect_grace,
            agents=sum(i.state is State.RUNNING and id not in lost for id, i in self._fleet.instances.items()),
            disconnected=[at for id, at in self._silent.items() if id not in lost],
            connected=list(self._quiet_connections(now - seconds)),
            missing=len(self._awaited - lost),
        )

    def _can_return(self, id: InstanceId) -> bool:
        instance = self._fleet.instances.get(id)
        expires = instance.certificate_expires if instance is not None else None
        return liveness.can_return(expires, steady=self._clock.steady(), wall=self._clock.wall())

    def _quiet_connections(self, before: float) -> Iterator[tuple[float, float]]:
        """Of connected agents that were last seen before then: when, and when their last byte came."""
        for id, observed in self._fleet.facts.items():
            agent = observed.agent
            if agent.last_seen > before or not agent.connected or id in self._silent or id not in self._fleet.instances:
                continue
            last_byte = self._last_seen(id)
            if self._fleet.instances[id].state is State.RUNNING and last_byte is not None:
                yield agent.last_seen, last_byte
