"""The limits of rotation and expiry, stated independently of the code: how many VMs may exist and how many must be ready."""

from typing import TYPE_CHECKING

from nstance.model.events import NoticeKind
from nstance.model.group import UpdateOrder
from nstance.model.ids import InstanceId
from nstance.model.instance import CAPACITY, ENDED, Cause, Instance, State
from nstance.model.observation import Observation
from nstance.model.rollout import GroupRecord, Outcome
from unit.core.core_situation import observation

if TYPE_CHECKING:
    from unit.core.core_world import World

VOLUNTARY = (Cause.DRIFT, Cause.ELIGIBLE_EXPIRY, Cause.FORCED_EXPIRY, Cause.PREFERENCE)
GOING = (State.DRAINING, State.DELETING)


def judge(world: "World", before: dict[InstanceId, Instance], record: GroupRecord | None) -> None:
    if world.desired is None or world.desired.paused:
        return
    made = [r for r in world.records.values() if r.id not in before and r.counts]
    begun = [r for r in made if r.replaces_for in VOLUNTARY and _is_voluntary(world, r)]
    left = [
        r for r in world.records.values() if r.cause in VOLUNTARY and r.state in GOING and _was_capacity(before, r.id)
    ]
    check_revisions(world, made)
    if any(not _counts(world, r.replaces) or _is_voluntary(world, r) for r in made):
        check_existing(world)
    for old in left:
        check_left(world, before[old.id])
    if begun or left:
        check_held(world, record, begun, left)
        if world.desired.order is UpdateOrder.SERIAL and (begun or any(not _replacements(world, r) for r in left)):
            check_serial(world, before, begun, left)


def next_revision(world: "World") -> str:
    """The revision that the next instance has."""
    desired, current = world.desired, world.record.current if world.record is not None else None
    assert desired is not None
    if current is None or current.infra_hash != desired.infra_hash or world.fallback() is None:
        return desired.infra_hash
    is_trial = desired.canary > 0 and current.resumed_at is None and current.outcome is Outcome.ROLLING
    has_failed = current.outcome is Outcome.HALTED and current.failures > 0
    if current.outcome not in (Outcome.PAUSED, Outcome.HALTED) and not is_trial:
        return desired.infra_hash
    updated = sum(r.counts and r.infra_hash == desired.infra_hash for r in world.records.values())
    if updated < desired.canary and not has_failed:
        return desired.infra_hash
    earlier = [r for r in world.record.revisions if r.infra_hash != desired.infra_hash] if world.record else []
    complete = [r for r in earlier if r.outcome is Outcome.COMPLETE]
    return (complete or [r for r in earlier if r.outcome is not Outcome.ROLLED_BACK])[-1].infra_hash


def check_revisions(world: "World", made: list[Instance]) -> None:
    """While a rollout is held, instances are made from the revision before it, apart from its canaries."""
    desired = world.desired
    assert desired is not None
    new = [r for r in made if not r.on_demand and r.infra_hash == desired.infra_hash]
    if new and next_revision(world) != desired.infra_hash:
        current = [r for r in world.records.values() if r.counts and r.infra_hash == desired.infra_hash]
        updated = len(current) - len({r.replaces for r in current} & {r.id for r in current})  # they share a place
        assert updated <= desired.canary, f"{updated} instances of a revision with {desired.canary} canaries"


def check_existing(world: "World") -> None:
    """Never more VMs than size and `max_surge`, apart from involuntary work."""
    desired = world.desired
    assert desired is not None
    there = [r for r in world.records.values() if not r.on_demand and r.state not in ENDED]
    explained = sum(r.state in GOING and not is_leaving(world, r) for r in there)
    explained += sum(r.counts and _counts(world, r.replaces) and not _is_voluntary(world, r) for r in there)
    surge = desired.max_surge or (0 if desired.max_unavailable else 1)
    assert len(there) - explained <= desired.size + surge, f"{len(there)} VMs for {desired.size}"


def check_left(world: "World", old: Instance) -> None:
    desired = world.desired
    assert desired is not None
    takers = _replacements(world, old)
    assert not takers or any(_ready(world, t) for t in takers), f"{old.id} left for one that is not ready"
    ready = sum(_ready(world, r) for r in world.records.values())
    if not takers:
        able = ready + sum(_broken(world, r) for r in world.records.values())
        assert able >= desired.size - desired.max_unavailable, f"{old.id} left first, {able} can be ready without it"
    if _observed(world, old).agent.ready:
        assert ready >= desired.size - desired.max_unavailable, f"{ready} of {desired.size} are ready without {old.id}"


def check_held(world: "World", record: GroupRecord | None, begun: list[Instance], left: list[Instance]) -> None:
    current = record.current if record is not None else None
    now = world.record.current if world.record is not None else None
    if current is None or now is None or current.infra_hash != now.infra_hash:
        return
    begun = [r for r in begun if r.replaces_for is not Cause.FORCED_EXPIRY]  # that waits for nothing but the limits
    left = [r for r in left if r.cause is not Cause.FORCED_EXPIRY]
    if not begun and not left:
        return
    if current.outcome is Outcome.HALTED:
        assert now.outcome is Outcome.COMPLETE, "a halted rollout went on"
    if current.outcome is Outcome.PAUSED and (begun or any(not _replacements(world, r) for r in left)):
        # One that has a replacement already, because it was silent for a while, may go.
        assert now.outcome is not Outcome.PAUSED, "a paused rollout went on"
    if world.mass_silence or world.mass_absence:
        assert world.mass_since is not None
        assert now.started > world.mass_since, "voluntary work while many are silent or missing"


def check_serial(
    world: "World", before: dict[InstanceId, Instance], begun: list[Instance], left: list[Instance]
) -> None:
    desired = world.desired
    assert desired is not None
    assert len(begun) + sum(not _replacements(world, r) for r in left) <= 1, "more than one step at a time"
    for r in before.values():
        now = world.records.get(r.id)
        assert now is None or now in left or not is_leaving(world, now), f"{r.id} is not gone yet"
        if r.counts and r.infra_hash == desired.infra_hash and now is not None and now.counts:
            assert _ready(world, now), f"{r.id} is not ready yet"
            assert world.now >= _observed(world, now).agent.ready_since + desired.settle - 0.001, (
                f"{r.id} has not settled"
            )


def is_leaving(world: "World", record: Instance) -> bool:
    """Because of work within the limits, and not gone."""
    if record.on_demand or record.state not in GOING:
        return False
    hint = record.cause is Cause.SPOT and _observed(world, record).agent.notice is NoticeKind.REBALANCE
    return record.cause in VOLUNTARY or hint


def _is_voluntary(world: "World", taker: Instance) -> bool:
    if taker.replaces is None or not _counts(world, taker.replaces):
        return False  # it fills a free place
    notice = _observed(world, world.records[taker.replaces]).agent.notice
    if notice not in (None, NoticeKind.REBALANCE):
        return False  # whatever it was started for, the old instance is removed anyway
    hint = taker.replaces_for is Cause.SPOT and notice is NoticeKind.REBALANCE
    return taker.replaces_for in VOLUNTARY or hint


def _observed(world: "World", record: Instance) -> Observation:
    return world.observed.get(record.id, observation(last_seen=world.listening))


def _ready(world: "World", record: Instance) -> bool:
    agent = _observed(world, record).agent
    return record.state is State.RUNNING and record.counts and not record.suspect and agent.ready and agent.connected


def _broken(world: "World", record: Instance) -> bool:
    agent = _observed(world, record).agent
    return record.state is State.RUNNING and record.counts and agent.connected and not agent.ready


def _replacements(world: "World", old: Instance) -> list[Instance]:
    return [r for r in world.records.values() if r.replaces == old.id and r.counts]


def _counts(world: "World", id: InstanceId | None) -> bool:
    return id is not None and id in world.records and world.records[id].counts


def _was_capacity(before: dict[InstanceId, Instance], id: InstanceId) -> bool:
    return id in before and before[id].state in CAPACITY and not before[id].on_demand
