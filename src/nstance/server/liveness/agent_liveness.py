"""Whom of the agents this server hears, and whose silence is rather its own.

Ping answers make no events: whoever looks silent is asked of its connection before anything is concluded. Agents that have
yet to come back to a new leader, or that could not be heard while the process stood still, are not silent. And when too
many are silent at once, the fault is probably here or in between; when that is over, whoever is still behind gets the
time that agents get after a change of leaders. The traps: a connection that is dead without a reset ends long after its
agent fell silent, so silence counts from the last byte; and an agent whose certificate ran out while no server was there
can never come back, so nobody waits for it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from nstance.clock import Clock
from nstance.core import silence
from nstance.model import events as ev
from nstance.model.decision import Observation
from nstance.model.ids import InstanceId
from nstance.model.instance import Instance, State

log = logging.getLogger(__name__)

JUDGE_EVERY = 0.2
EARLIER = 0.8
SOON = 0.75  # of suspect_after: by then everybody who is well was heard again
ASKED = 0.5  # of suspect_after: whoever said nothing for so long was asked, and should answer at once
QUIET = 0.65  # of suspect_after: whoever is well has answered by then
RECONNECT_FLOOR = 10.0
RECONNECT_MOST = 300.0
RECONNECT_PER_SECOND = 300.0
TICK = 1.0
CLOCKS_DIFFER = 60.0  # seconds that a certificate is past its end before that is believed
DEAF = 1.0  # a tick that comes so late: the process or its machine stood still


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
        self.doubt = False  # it may be one: some have been asked and had no time to answer yet
        self._fleet = fleet
        self._clock = clock
        self._heard = last_seen
        self._silent: dict[InstanceId, float] = {}  # who has no connection, and when its last byte came
        self._awaited = {
            id for id, i in fleet.instances.items() if i.state is State.RUNNING
        }  # not back since the term began
        self._unanswered: set[InstanceId] = set()  # whose registration is on its way to the journal
        self._judged = float("-inf")
        self.reconnect_grace = _grace(len(self._awaited))

    def notice_deafness(self) -> None:
        """To be called every TICK. A server that stood still has heard nobody: what it missed is not the agents' silence."""
        now = self._clock.steady()
        if now > self._ticked + TICK + DEAF:
            log.warning("this server stood still", extra={"seconds": round(now - self._ticked, 1)})
            self.listening_since = now
        self._ticked = now

    def refresh(self, members: Iterable[InstanceId], now: float, patience: float) -> bool:
        """Ask the connections of those that look silent or will soon; says whether somebody is silent indeed. Soon: each
        of thousands comes due at another moment, and a group that woke for one alone would never sleep."""
        quiet = False
        monotonic = self._clock.monotonic()
        early = now - SOON * patience
        known, unanswered = self._fleet.facts, self._unanswered
        for id in members:
            facts = known.get(id)
            if facts is None or (facts.last_seen > early and id not in unanswered):
                continue
            if id in unanswered:
                self._fleet.set_last_seen(id, now)
            elif facts.connected and self._fleet.instances[id].ended is None:  # nobody waits for those that ended
                self._learn(id, facts, now, monotonic)
                quiet |= now >= known[id].last_seen + patience
        return quiet

    def _learn(self, id: InstanceId, facts: Observation, now: float, monotonic: float) -> None:
        last_seen = self._heard(id)
        if last_seen is not None:
            self._fleet.set_last_seen(id, max(facts.last_seen, now - max(0.0, monotonic - last_seen)))

    def note(self, event: ev.Event) -> None:
        match event:
            case ev.AgentLost(id):
                instance, facts = self._fleet.instances.get(id), self._fleet.facts.get(id)
                if facts is not None and facts.connected:
                    # Silence begins with the last byte, not with the last time that somebody looked.
                    self._learn(id, facts, self._clock.steady(), self._clock.monotonic())
                if instance is not None and instance.state is State.RUNNING:
                    self._silent[id] = (
                        self._fleet.facts[id].last_seen if id in self._fleet.facts else self._clock.steady()
                    )
            case ev.AgentConnected(id):
                self._silent.pop(id, None)
                self._unanswered.discard(id)
                if id in self._awaited:
                    self._awaited.discard(id)
                    # The fleet may return slower than was thought: whoever is still behind gets a moment more.
                    passed = self._clock.steady() - self.listening_since
                    self.reconnect_grace = max(self.reconnect_grace, min(RECONNECT_MOST, passed + RECONNECT_FLOOR))
            case ev.VmChecked(id, ev.VmState.DOWN | ev.VmState.DELETED):
                self.forget(id)
            case _:
                pass

    def registering(self, id: InstanceId) -> None:
        """Its registration was accepted. It cannot connect before it is told so: a slow journal is not its silence."""
        facts = self._fleet.facts.get(id)
        if facts is not None and facts.awaited:
            self._unanswered.add(id)

    def registered(self, id: InstanceId) -> None:
        """It is told now, and silent until it connects, which it may never do."""
        if id in self._unanswered:
            self._unanswered.discard(id)
            now = self._clock.steady()
            self._fleet.set_last_seen(id, now)
            self._silent.setdefault(id, now)

    def forget(self, id: InstanceId) -> None:
        """Nobody expects to hear of it any more."""
        self._unanswered.discard(id)
        self._silent.pop(id, None)
        self._awaited.discard(id)

    def judge(self, now: float, suspect_after: float, *, quiet: bool) -> str | None:
        """Looked at before an agent could become suspect, so that none does when too many would. What is to be said, if
        the verdict has changed; `quiet`: somebody is silent on an open connection."""
        somebody = quiet or self._silent or self._awaited or self.mass_silence
        if not somebody:
            self.doubt = False
        if not somebody or now < self._judged + JUDGE_EVERY:
            return None
        self._judged = now
        if self.mass_silence and now < self.listening_since + QUIET * suspect_after:
            return None  # this server stood still: that nobody is silent yet means nothing
        silent = self._count(now, QUIET * suspect_after)
        away = self._silent.keys() | self._awaited
        agents = sum(
            i.state is State.RUNNING and (id not in away or self._may_return(id))
            for id, i in self._fleet.instances.items()
        )
        verdict = silence.is_mass_silence(silent, agents, before=self.mass_silence)
        self.doubt = not verdict and silence.is_mass_silence(
            self._count(now, ASKED * suspect_after), agents, before=False
        )
        if verdict == self.mass_silence:
            return None
        self.mass_silence = verdict
        if not verdict:
            # Whoever is not back yet was cut off like the others: from now on its silence counts anew.
            self.listening_since = now
            self.reconnect_grace = max(self.reconnect_grace, _grace(silent))
            return "enough agents are back: the normal rules apply again"
        return (
            f"{silent} of {agents} agents fell silent at once: the fault is probably here or in between, "
            "nothing is deleted for silence until they return"
        )

    def _count(self, now: float, long: float) -> int:
        """How many agents that could be heard have said nothing for so long."""
        silent = 0
        if now >= self.listening_since + long:  # before that nobody could be heard
            silent = sum(now - at >= long and self._may_return(id) for id, at in self._silent.items())
            silent += self._quiet_connections(long)
        if now >= self.listening_since + EARLIER * self.reconnect_grace:
            silent += sum(map(self._may_return, self._awaited))
        return silent

    def _may_return(self, id: InstanceId) -> bool:
        """Whether the agent's certificate still opens a connection; in doubt, when two clocks disagree, it does."""
        instance = self._fleet.instances.get(id)
        expires = instance.certificate_expires if instance is not None else None
        return expires is None or min(self._clock.steady(), self._clock.wall()) < expires + CLOCKS_DIFFER

    def _quiet_connections(self, seconds: float) -> int:
        """How many agents seem to be connected, and have said nothing for so long."""
        early, before = self._clock.steady() - seconds, self._clock.monotonic() - seconds
        instances = self._fleet.instances
        return sum(
            facts.connected
            and id not in self._silent  # its connection was lost: counted there
            and instances[id].state is State.RUNNING
            and (last_seen := self._heard(id)) is not None
            and last_seen <= before
            for id, facts in self._fleet.facts.items()
            if facts.last_seen <= early and id in instances  # of most that is enough to know, and quickly told
        )


def _grace(agents: int) -> float:
    return RECONNECT_FLOOR + 2 * agents / RECONNECT_PER_SECOND
