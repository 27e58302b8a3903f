"""The rules of leadership: until when a lease holder may act, and what a standby may claim when.

A holder counts from the moment it *sent* a renewal or heartbeat; everybody else counts from the moment they *received* or
saw it, and a little longer. So the holder stops first, whatever the network does. Each side reads only its own monotonic
clock; the stretch covers clocks that run at different rates.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nstance.tasks.backoff import Backoff

STRETCH = 1.05  # others wait this much longer than the holder counts: covers clocks that differ by 5 %
MARGIN_SECONDS = 0.05
SAMPLES = 3  # of the latency of storage
USUAL_MAX_SECONDS = 10.0  # a slower store is treated like this one
TIMEOUT_MIN_SECONDS, TIMEOUT_MAX_SECONDS = 0.7, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """In seconds, for a store that answers at once; `adapted` gives those for a slow one."""

    heartbeat: float = 0.1
    promise: float = 1.0  # how long a member's answer is a promise
    crash_wait: float = 0.3  # the same, for a member that finds the leader's connection reset and its port refused
    fresh: float = 0.2  # a promise older than this no longer replaces renewals in storage
    renew_with_members: float = 10.0  # while all members' promises are fresh
    length_with_members: float = 15.0  # what outsiders must wait while there are members
    renew_doubtful: float = 0.5  # while a member does not answer
    renew_standby: float = 1.0  # while a standby exists and is not a member
    length_standby: float = 1.9
    renew_alone: float = 5.0
    write_gap: float = 0.0  # two renewals are at least this far apart: some stores refuse the second one
    length_alone: float = 15.0
    frozen_most: float = 5.0  # then a term ends: shorter than the time that agents get to connect to a new leader
    member_silence: float = 30.0  # then a member is dropped
    standby_memory: float = 600.0  # how long a dropped member is believed to exist
    poll: float = 0.5
    flap_short: float = 30.0  # a term shorter than this is a flap
    flap_count: int = 3
    flap_wait: float = 10.0
    flap_wait_most: float = 60.0


def spaced(timings: Timings, gap: float) -> Timings:
    """The timings for a store that takes a write of the lease at most every `gap` seconds."""
    return replace(
        timings,
        write_gap=gap,
        renew_doubtful=max(timings.renew_doubtful, gap),
        renew_standby=max(timings.renew_standby, gap),
        renew_with_members=max(timings.renew_with_members, gap),
        renew_alone=max(timings.renew_alone, gap),
    )


def adapted(timings: Timings, latency: float) -> Timings:
    """The timings for a store that usually answers after `latency` seconds.

    Renewals follow each other by the interval or by one answer, whichever is longer, and each is confirmed one answer
    later; half an answer more is for slower ones. Longer timings make failover slower.
    """
    spare = 2.5 * latency
    promise = max(timings.promise, timings.renew_doubtful + spare)
    return replace(
        timings,
        promise=promise,
        crash_wait=min(promise, max(timings.crash_wait, timings.fresh + spare)),
        length_with_members=max(timings.length_with_members, timings.renew_with_members + spare),
        length_standby=max(timings.length_standby, timings.renew_standby + spare),
        length_alone=max(timings.length_alone, timings.renew_alone + spare),
        # The next leader needs some answers from storage as well before agents can connect to it.
        frozen_most=timings.frozen_most + 3 * latency,
    )


@dataclass(frozen=True, slots=True)
class Latency:
    """An estimate of how long object storage takes to answer, from the last few answers and timeouts.

    Leases and promises follow the usual answer: a single slow one changes nothing, and a store that cannot be reached does
    not make them longer. Timeouts follow the slowest answer, and triple each time one passes.
    """

    answers: tuple[float, ...] = ()
    waited: float = 0.0  # the longest timeout since the last answer

    def answered(self, seconds: float) -> "Latency":
        return Latency((*self.answers[1 - SAMPLES :], seconds))

    def timed_out(self, seconds: float) -> "Latency":
        return replace(self, waited=max(self.waited, seconds))

    @property
    def usual(self) -> float:
        ordered = sorted(self.answers)
        return min(USUAL_MAX_SECONDS, ordered[len(ordered) // 2]) if ordered else 0.0

    @property
    def slowest(self) -> float:
        """The longest of the last few answers, or how long one was waited for in vain."""
        return min(USUAL_MAX_SECONDS, max(self.waited, *self.answers, 0.0))

    @property
    def timeout(self) -> float:
        """How long to wait for the next answer."""
        return min(TIMEOUT_MAX_SECONDS, max(TIMEOUT_MIN_SECONDS, 3 * max(self.waited, *self.answers, 0.0)))


def frozen_limit(timings: Timings, latency: Latency, *, has_standby: bool) -> float:
    """How long a holder may be unable to renew before its term ends. While a standby is connected it takes over soon, and
    agents must be free by then. Without one, ending the term only costs time, so a store that becomes slow is waited for."""
    if has_standby:
        return adapted(timings, latency.usual).frozen_most
    return timings.frozen_most + 3 * latency.slowest


@dataclass(frozen=True, slots=True)
class Answer:
    """The newest heartbeat that a standby has answered: when it was sent, and how long the answer holds."""

    sent: float
    promise: float
    crash_wait: float


@dataclass(frozen=True, slots=True)
class Members:
    """The standbys that a lease names. `offered`: those that know its version from a heartbeat, so that they can claim it
    without reading it first."""

    ids: Sequence[str]
    answered: Mapping[str, Answer]
    offered: Collection[str] = ()


def outsider_length(timings: Timings, *, members: int, standby_near: bool) -> float:
    """The length of the lease for servers that are not members."""
    if members:
        return timings.length_with_members
    return timings.length_standby if standby_near else timings.length_alone


def valid_until(members: Members, *, sent: float, length: float, promise: float) -> float:
    """Until when the holder may start work. `sent`: when the newest confirmed renewal was sent."""
    limit = sent + length
    for member in members.ids:
        # A member whose promise ran out may claim the version that it knows; a later renewal invalidates that.
        until, answer = sent + promise, members.answered.get(member)
        if answer is not None:
            until = max(until, answer.sent + answer.promise)
            if member in members.offered:
                # It may believe that the holder crashed, rightly or not, and then claims this early.
                until = min(until, answer.sent + answer.crash_wait)
        limit = min(limit, until)
    return limit


def is_fresh(timings: Timings, answer: Answer | None, now: float) -> bool:
    """Whether a member's answer still replaces renewals in storage."""
    return answer is not None and now < answer.sent + timings.fresh


def renew_at(timings: Timings, members: Members, *, sent: float, now: float, standby_near: bool) -> float:
    """When the next renewal is due if no further answer arrives."""
    if not members.ids:
        return sent + (timings.renew_standby if standby_near else timings.renew_alone)
    due = sent + timings.renew_with_members
    for member in members.ids:
        answer = members.answered.get(member)
        if member in members.offered and answer is not None:
            due = min(due, answer.sent + timings.fresh)  # it may claim soon, on the version that it knows
        elif not is_fresh(timings, answer, now):
            due = min(due, sent + timings.renew_doubtful)
    return max(due, sent + timings.write_gap) if timings.write_gap else due


def claim_wait(*, length: float, promise: float, member: bool) -> float:
    """How long a candidate must have seen the lease unchanged, on its own clock."""
    return (promise if member else length) * STRETCH + MARGIN_SECONDS


def promise_until(*, received: float, promise: float) -> float:
    """Until when a member does not claim after a heartbeat."""
    return received + promise * STRETCH + MARGIN_SECONDS


def flap_wait(timings: Timings, flaps: int) -> float:
    """How long a server that keeps losing leadership soon after gaining it does not claim."""
    if flaps < timings.flap_count:
        return 0.0
    return Backoff(timings.flap_wait, timings.flap_wait_most).delay(flaps - timings.flap_count + 1)


# ---- claims of a standby


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that the rules allow now."""

    epoch: int
    version: str | None  # of the lease object; None: there is none
    alone: bool  # no other server is known to compete
    reason: str = field(default="", compare=False)  # why it may be claimed, for people


Attempt = tuple[Claim | None, float]  # what to claim, or how many seconds to wait before looking again


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLease:
    """The lease as it was read."""

    epoch: int
    sequence: int
    version: str
    free: bool
    server: str  # of its holder
    incarnation: str
    members: Collection[str]  # incarnations
    length: float
    promise: float


def claim_offered(epoch: int, version: str, *, newest_epoch: int, reason: str = "") -> Claim | None:
    """A lease whose version is known from the leader: it was released, or our promise has run out."""
    return Claim(epoch + 1, version, alone=False, reason=reason) if epoch >= newest_epoch else None


def claim_known(
    known: KnownLease, *, server: str, incarnation: str, seen_at: float, now: float, poll: float
) -> Attempt:
    """A lease that is in storage, unchanged since `seen_at`. `server` and `incarnation`: of the candidate."""
    claim = Claim(known.epoch + 1, known.version, alone=known.server == server)
    if known.free:
        return replace(claim, reason=f"{known.server} released the lease"), 0.0
    if known.incarnation == incarnation:
        return replace(claim, reason="this server held the lease last"), 0.0  # in a term that has ended
    member = incarnation in known.members
    wait = claim_wait(length=known.length, promise=known.promise, member=member)
    remaining = seen_at + wait - now
    claim = replace(claim, reason=f"{known.server} has not renewed the lease for {now - seen_at:.1f} s")
    return (claim, 0.0) if remaining <= 0 else (None, min(remaining, max(poll, wait / 8)))


def claim_renewed(
    known: KnownLease, *, incarnation: str, leader: str, announced_epoch: int, announced_sequence: int
) -> Claim | None:
    """A lease that was renewed while it was being claimed: it may be claimed at once if the leader (its incarnation) had
    announced that renewal before it became unresponsive."""
    same_term = (known.incarnation, known.epoch) == (leader, announced_epoch) and not known.free
    if not same_term or incarnation not in known.members or known.sequence > announced_sequence:
        return None
    return Claim(
        known.epoch + 1,
        known.version,
        alone=False,
        reason=f"{known.server} ended with a renewal under way",
    )


def claim_missing(timings: Timings, *, last_epoch: int, missing_for: float, poll: float) -> Attempt:
    """No lease exists. That is normal for a new shard; otherwise it was removed, and its holder may still act."""
    if last_epoch == 0:
        return Claim(1, None, alone=True, reason="no server has led this shard yet"), 0.0
    wait = claim_wait(length=timings.length_alone, promise=timings.promise, member=False)
    if missing_for < wait:
        return None, min(poll * 4, wait)
    reason = f"the lease object has been missing for {missing_for:.1f} s"
    return Claim(last_epoch + 1, None, alone=False, reason=reason), 0.0
