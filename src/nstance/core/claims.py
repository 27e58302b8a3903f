"""Which claim of the lease a standby may make now, or how long it has to wait."""

from collections.abc import Collection
from dataclasses import dataclass

from nstance.core import election


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that the rules allow now."""

    epoch: int
    version: str | None  # of the lease object; None: there is none
    alone: bool  # no other server is known to compete


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


def claim_offered(epoch: int, version: str, *, newest_epoch: int) -> Claim | None:
    """A lease whose version is known from the leader: it was released, or our promise has run out."""
    return Claim(epoch + 1, version, alone=False) if epoch >= newest_epoch else None


def claim_known(
    known: KnownLease, *, server: str, incarnation: str, seen_at: float, now: float, poll: float
) -> Attempt:
    """A lease that is in storage, unchanged since `seen_at`. `server` and `incarnation`: of the candidate."""
    claim = Claim(known.epoch + 1, known.version, alone=known.server == server)
    if known.free or known.incarnation == incarnation:
        return claim, 0.0  # released, or our own from a term that has ended
    member = incarnation in known.members
    wait = election.claim_wait(length=known.length, promise=known.promise, member=member)
    remaining = seen_at + wait - now
    return (claim, 0.0) if remaining <= 0 else (None, min(remaining, max(poll, wait / 8)))


def claim_renewed(
    known: KnownLease, *, incarnation: str, leader: str, announced_epoch: int, announced_sequence: int
) -> Claim | None:
    """A lease that was renewed while it was being claimed: it may be claimed at once if the leader (its incarnation) had
    announced that renewal before it became unresponsive."""
    same_term = (known.incarnation, known.epoch) == (leader, announced_epoch) and not known.free
    if not same_term or incarnation not in known.members or known.sequence > announced_sequence:
        return None
    return Claim(known.epoch + 1, known.version, alone=False)


def claim_missing(timings: election.Timings, *, last_epoch: int, missing_for: float, poll: float) -> Attempt:
    """No lease exists. That is normal for a new shard; otherwise it was removed, and its holder may still act."""
    if last_epoch == 0:
        return Claim(1, None, alone=True), 0.0
    wait = election.claim_wait(length=timings.length_alone, promise=timings.promise, member=False)
    if missing_for < wait:
        return None, min(poll * 4, wait)
    return Claim(last_epoch + 1, None, alone=False), 0.0
