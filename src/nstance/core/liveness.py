"""Whether unresponsive agents are the agents' fault or ours.

When many agents become unresponsive at once, the fault is probably in this server or the network. The last few that stay
unresponsive must not keep that state up forever, and the first few that return must not end it while others still
reconnect. So it begins above a third of the agents and ends at a sixth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MASS_SILENCE_MIN = 3
# Shares of `suspect_after`: when a connection without traffic was asked for a sign of life, and when a healthy agent has
# answered.
ASKED_SHARE, ANSWERED_SHARE = 0.5, 0.65
GRACE_SHARE = 0.8  # of the reconnect grace: agents that are not back by then count as silent
RECONNECT_MIN_SECONDS, RECONNECT_MAX_SECONDS = 10.0, 300.0
RECONNECTS_PER_SECOND = 300.0
CLOCK_SKEW_SECONDS = 60.0  # a certificate must have expired for this long before that is believed


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The agents of a shard at one moment. Agents that can never return are left out."""

    now: float
    monotonic: float
    listening_since: float
    reconnect_grace: float
    agents: int  # connected, or expected to be
    disconnected: Sequence[float]  # when the last byte of each came
    connected: Sequence[tuple[float, float]]  # of those that look silent: last seen, and on the monotonic clock
    missing: int  # not back since the term began


@dataclass(frozen=True, slots=True)
class Verdict:
    mass_silence: bool
    doubtful: bool  # it may be one: some agents were asked and had no time to answer yet
    silent: int


def judge_silence(fleet: Fleet, suspect_after: float, *, before: bool) -> Verdict:
    """`before`: whether there was mass silence until now."""
    silent = _count_silent(fleet, ANSWERED_SHARE * suspect_after)
    if is_mass_silence(silent, fleet.agents, before=before):
        return Verdict(True, False, silent)
    asked = _count_silent(fleet, ASKED_SHARE * suspect_after)
    return Verdict(False, is_mass_silence(asked, fleet.agents, before=False), silent)


def is_mass_silence(silent: int, agents: int, *, before: bool) -> bool:
    if before:
        return silent > 1 and silent * 6 > agents
    return silent >= MASS_SILENCE_MIN and silent * 3 > agents


def _count_silent(fleet: Fleet, seconds: float) -> int:
    """How many agents sent nothing for so long."""
    silent = 0
    if fleet.now >= fleet.listening_since + seconds:  # before that, nothing could be received
        silent = sum(fleet.now - at >= seconds for at in fleet.disconnected)
        steady, monotonic = fleet.now - seconds, fleet.monotonic - seconds
        silent += sum(seen <= steady and byte <= monotonic for seen, byte in fleet.connected)
    if fleet.now >= fleet.listening_since + GRACE_SHARE * fleet.reconnect_grace:
        silent += fleet.missing
    return silent


def can_return(certificate_expires: float | None, *, steady: float, wall: float) -> bool:
    """Whether the agent's certificate still opens a connection; if two clocks disagree, it does."""
    return certificate_expires is None or min(steady, wall) < certificate_expires + CLOCK_SKEW_SECONDS


def reconnect_grace(agents: int) -> float:
    """How long a fleet may take to reconnect."""
    return RECONNECT_MIN_SECONDS + 2 * agents / RECONNECTS_PER_SECOND


def extend_grace(grace: float, elapsed: float) -> float:
    """An agent returned: the fleet may be slower than estimated, and the remaining ones get a moment more."""
    return max(grace, min(RECONNECT_MAX_SECONDS, elapsed + RECONNECT_MIN_SECONDS))
