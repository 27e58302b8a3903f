"""The arithmetic of leadership: until when a holder may act, when a candidate may try.

Two rules carry it. A holder counts from the moment it *sent* a renewal or heartbeat; everybody else counts from the
moment they *received* or saw it, and a little longer. So whatever the network does, the holder stops first. Each side
reads only its own monotonic clock; clocks that run at different rates are covered by the stretch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STRETCH = 1.05  # others wait this much longer than the holder counts: covers clocks that differ by 5 %
MARGIN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """In seconds. One profile per kind of store; a store may demand a minimum between writes."""

    heartbeat: float = 0.2
    promise: float = 2.0  # a member's answer is a promise for so long
    fresh: float = 0.6  # a promise older than this no longer replaces renewals in storage
    renew_with_members: float = 10.0  # while all members' promises are fresh
    length_with_members: float = 15.0  # what outsiders must wait while there are members
    renew_doubtful: float = 0.5  # a member does not answer
    renew_standby: float = 1.0  # a standby exists but is no member
    length_standby: float = 1.9
    renew_alone: float = 5.0
    length_alone: float = 15.0
    member_silence: float = 30.0  # then a member is dropped
    standby_memory: float = 600.0  # so long a dropped member is believed to exist
    poll: float = 0.5
    flap_short: float = 30.0  # a term shorter than this is a flap
    flap_count: int = 3
    flap_wait: float = 10.0
    flap_wait_most: float = 60.0


def outsider_length(timings: Timings, *, members: int, standby_near: bool) -> float:
    """What a lease says to those who are not members."""
    if members:
        return timings.length_with_members
    return timings.length_standby if standby_near else timings.length_alone


def valid_until(
    *, sent: float, length: float, promise: float, members: Sequence[str], answered: Mapping[str, float]
) -> float:
    """Until when the holder may start work. `sent`: when the newest confirmed renewal was sent; `answered`: when the
    newest heartbeat that a member has answered was sent."""
    limit = sent + length
    for member in members:
        # A member whose promise ran out may try on the version it knows; a later renewal takes that from it.
        limit = min(limit, max(sent, answered.get(member, sent)) + promise)
    return limit


def renew_after(
    timings: Timings, *, members: Sequence[str], answered: Mapping[str, float], now: float, standby_near: bool
) -> float:
    """How long after the last renewal the next one is due."""
    if not members:
        return timings.renew_standby if standby_near else timings.renew_alone
    if all(now - answered.get(m, float("-inf")) < timings.fresh for m in members):
        return timings.renew_with_members
    return timings.renew_doubtful


def patience(*, length: float, promise: float, member: bool) -> float:
    """How long a candidate must have seen the lease unchanged, on its own clock."""
    return (promise if member else length) * STRETCH + MARGIN


def promise_until(*, received: float, promise: float) -> float:
    """Until when a member keeps still after a heartbeat."""
    return received + promise * STRETCH + MARGIN


def flap_wait(timings: Timings, flaps: int) -> float:
    """How long a server that keeps losing leadership soon after gaining it keeps back."""
    if flaps < timings.flap_count:
        return 0.0
    return float(min(timings.flap_wait_most, timings.flap_wait * 2 ** (flaps - timings.flap_count)))
