"""Which agents are unresponsive, and when the fault is probably on the server's side.

Ping answers post no events, so the connection of an agent that looks unresponsive is checked first. Agents that have not
reconnected to a new leader yet, or that sent something while this process was stalled, are not unresponsive. When too
many are unresponsive at once (mass silence), the fault is probably here or in the network; afterwards the remaining ones
get the same time to reconnect as after a change of leaders. The traps: a dead connection without a reset ends long after
its agent, so time counts from the last byte; and an agent whose certificate has expired can never reconnect.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from nstance.clock import Clock
from nstance.core import silence
from nstance.model import events as ev
from nstance.model.decision import Observation, last_seen_at
from nstance.model.ids import InstanceId
from nstance.model.instance import Instance, State

log = logging.getLogger(__name__)

JUDGE_EVERY = 0.2
EARLIER = 0.8
SOON = 0.75  # of suspect_after: by then every healthy agent was seen again
ASKED = 0.5  # of suspect_after: after so long an agent was pinged
QUIET = 0.65  # of suspect_after: by then every healthy agent has answered the ping
RECONNECT_FLOOR = 10.0
RECONNECT_MOST = 300.0
RECONNECT_PER_SECOND = 300.0
TICK = 1.0
CLOCKS_DIFFER = 60.0  # seconds that a certificate is past its end before that is believed
DEAF = 1.0  # a tick that is so late means that the process or its machine was stalled


class AgentLiveness:
    def __init__(
        self,
        instances: Mapping[InstanceId, Instance],
        facts: dict[InstanceId, Observation],
        *,
        clock: Clock,
        last_seen: Callable[[InstanceId], float | None],
    ) -> None:
        """`instances` and `facts` are the shard's own, as they are at any time; `heard` as for the shard."""
        self.listening_since = self._ticked = clock.steady()
        self.mass_silence = False
        self.doubt = False  # it may be a mass silence: some agents had no time to answer a ping yet
        self._instances = instances
        self._facts = facts
        self._clock = clock
        self._last_seen = last_seen
        self._silent: dict[InstanceId, float] = {}  # last byte of agents without a connection
        self._awaited = {id for id, i in instances.items() if i.state is State.RUNNING}  # not reconnected in this term
        self._unanswered: set[InstanceId] = set()  # whose registration is not in the journal yet
        self._judged = float("-inf")
        self.reconnect_grace = _grace(len(self._awaited))

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
        known, unanswered = self._facts, self._unanswered
        for id in members:
            facts = known.get(id)
            if facts is None or (facts.last_seen > early and id not in unanswered):
                continue
            if id in unanswered:
                known[id] = last_seen_at(facts, now)
            elif facts.connected and self._instances[id].ended is None:  # ended instances do not matter
                self._learn(id, facts, now, monotonic)
                quiet |= now >= known[id].last_seen + patience
        return quiet

    def _learn(self, id: InstanceId, facts: Observation, now: float, monotonic: float) -> None:
        last_seen = self._last_seen(id)
        if last_seen is not None:
            self._facts[id] = last_seen_at(facts, max(facts.last_seen, now - max(0.0, monotonic - last_seen)))

    def note(self, event: ev.Event) -> None:
        match event:
            case ev.AgentLost(id):
                instance, facts = self._instances.get(id), self._facts.get(id)
                if facts is not None and facts.connected:
                    # Time counts from the last byte, not from the last check.
                    self._learn(id, facts, self._clock.steady(), self._clock.monotonic())
                if instance is not None and instance.state is State.RUNNING:
                    self._silent[id] = self._facts[id].last_seen if id in self._facts else self._clock.steady()
            case ev.AgentConnected(id):
                self._silent.pop(id, None)
                self._unanswered.discard(id)
                if id in self._awaited:
                    self._awaited.discard(id)
                    # The fleet reconnects slower than expected: the remaining agents get more time.
                    passed = self._clock.steady() - self.listening_since
                    self.reconnect_grace = max(self.reconnect_grace, min(RECONNECT_MOST, passed + RECONNECT_FLOOR))
            case ev.VmChecked(id, ev.VmState.DOWN | ev.VmState.DELETED):
                self.forget(id)
            case _:
                pass

    def registering(self, id: InstanceId) -> None:
        """Its registration was accepted. It cannot connect before the journal has it and it is answered."""
        facts = self._facts.get(id)
        if facts is not None and facts.awaited:
            self._unanswered.add(id)

    def registered(self, id: InstanceId) -> None:
        """It is answered now. From now on it counts as unresponsive until it connects, which it may never do."""
        if id in self._unanswered:
            self._unanswered.discard(id)
            now = self._clock.steady()
            self._facts[id] = last_seen_at(self._facts[id], now)
            self._silent.setdefault(id, now)

    def forget(self, id: InstanceId) -> None:
        """It is not expected to connect any more."""
        self._unanswered.discard(id)
        self._silent.pop(id, None)
        self._awaited.discard(id)

    def judge(self, now: float, suspect_after: float, *, quiet: bool) -> str | None:
        """Detects a mass silence before agents could become suspect. Returns a message if that has changed. `quiet`: an agent
        is unresponsive on an open connection."""
        somebody = quiet or self._silent or self._awaited or self.mass_silence
        if not somebody:
            self.doubt = False
        if not somebody or now < self._judged + JUDGE_EVERY:
            return None
        self._judged = now
        if self.mass_silence and now < self.listening_since + QUIET * suspect_after:
            return None  # this server was stalled: that no agent is unresponsive yet means nothing
        silent = self._count(now, QUIET * suspect_after)
        away = self._silent.keys() | self._awaited
        agents = sum(
            i.state is State.RUNNING and (id not in away or self._may_return(id)) for id, i in self._instances.items()
        )
        verdict = silence.is_mass_silence(silent, agents, before=self.mass_silence)
        self.doubt = not verdict and silence.is_mass_silence(
            self._count(now, ASKED * suspect_after), agents, before=False
        )
        if verdict == self.mass_silence:
            return None
        self.mass_silence = verdict
        if not verdict:
            # Agents that have not reconnected were cut off like the others: their time starts again.
            self.listening_since = now
            self.reconnect_grace = max(self.reconnect_grace, _grace(silent))
            return "mass silence ended: enough agents have reconnected"
        return (
            f"{silent} of {agents} agents are unresponsive at once: the fault is probably here or in the network, "
            "no unresponsive instance is replaced until they return"
        )

    def _count(self, now: float, long: float) -> int:
        """How many agents that could reach this server were not seen for so long."""
        silent = 0
        if now >= self.listening_since + long:  # before that no agent could be seen
            silent = sum(now - at >= long and self._may_return(id) for id, at in self._silent.items())
            silent += self._quiet_connections(long)
        if now >= self.listening_since + EARLIER * self.reconnect_grace:
            silent += sum(map(self._may_return, self._awaited))
        return silent

    def _may_return(self, id: InstanceId) -> bool:
        """Whether the agent's certificate is still valid by one of the two clocks."""
        instance = self._instances.get(id)
        expires = instance.certificate_expires if instance is not None else None
        return expires is None or min(self._clock.steady(), self._clock.wall()) < expires + CLOCKS_DIFFER

    def _quiet_connections(self, seconds: float) -> int:
        """How many agents with a connection were not seen for so long."""
        early, before = self._clock.steady() - seconds, self._clock.monotonic() - seconds
        return sum(
            facts.connected
            and id not in self._silent  # counted there
            and self._instances[id].state is State.RUNNING
            and (last_seen := self._last_seen(id)) is not None
            and last_seen <= before
            for id, facts in self._facts.items()
            if facts.last_seen <= early and id in self._instances  # a quick check that excludes most
        )


def _grace(agents: int) -> float:
    return RECONNECT_FLOOR + 2 * agents / RECONNECT_PER_SECOND
