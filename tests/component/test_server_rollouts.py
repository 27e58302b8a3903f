"""Rollouts on a whole server: limits, halts, canaries, rollbacks, and what people see of them."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from component.whole_server import Json, Operator, World, config
from nstance.model.ids import GroupKey, GroupName, TenantId
from nstance.model.instance import ENDED, State
from nstance.model.rollout import Outcome, Revision
from nstance.server.state.commits import Committed
from nstance.v1 import operator_pb2
from support.eventually import eventually

KEY = GroupKey(TenantId("acme"), GroupName("web"))
TOKEN = {"token": {"kind": "storage", "source": "data/token"}}
LOST = (GRPCError, StreamTerminatedError, OSError, AssertionError)  # the last one says that a stream has ended
HASTE = {"health": {"suspect_after": "3s", "dead_after": "60s"}}


def configuration(
    *, type: str = "small", files: Json | None = None, drain: str = "0", size: int = 3, **update: Any
) -> Json:
    group = {"template": "web", "size": size, "drain_timeout": drain, "update": update or {"max_surge": 1}}
    made = config(groups={"acme": {"web": group}}, **HASTE)
    made["templates"]["web"] |= {"instance_type": type, "ready_timeout": "1s"}
    if files is not None:
        made["templates"]["web"]["files"] = files
    return made


def current(world: World) -> Revision:
    record = world.leader.shard.group_records.get(KEY)
    found = record.current if record is not None else None
    return found or Revision(infra_hash="", started=0.0)


async def outcome(world: World, wanted: Outcome, *, revisions: int) -> None:
    def reached() -> bool:
        record = world.leader.shard.group_records.get(KEY)
        return record is not None and len(record.revisions) == revisions and record.revisions[-1].outcome is wanted

    await eventually(reached)


async def change(world: World, made: Json) -> None:
    world.configure(made)
    await world.leader.active_config.refresh()


async def group(operator: Operator) -> Any:
    return next(each for each in (await operator.call("ListGroups")).groups if each.key == "web")


def types(world: World) -> Counter[str]:
    return Counter(m.instance_type for m in world.leader.shard.members(KEY).values() if m.counts)


class Watched:
    """What there was of the group after each commit: VMs that exist, and how many of them drain or are ready."""

    def __init__(self, world: World) -> None:
        self._shard = world.leader.shard
        self.most = self.draining = 0
        self.least = 100
        self.made = 0
        self._shard.commits.subscribe(self._observe)

    def _observe(self, committed: Committed) -> None:
        members = [m for m in self._shard.members(KEY).values() if m.state not in ENDED]
        ready = sum(m.state is State.RUNNING and self._shard.facts[m.id].agent.ready for m in members)
        self.most = max(self.most, len(members))
        self.least = min(self.least, ready)
        self.draining = max(self.draining, sum(m.state is State.DRAINING for m in members))
        self.made += sum(m.id not in committed.before for m in members if m.state is State.PENDING)


@contextlib.asynccontextmanager
async def drained(operator: Operator) -> AsyncIterator[None]:
    """Somebody drains nodes, each for a moment, also after a busy machine has cost the stream or an answer."""

    async def drain() -> None:
        while True:
            with contextlib.suppress(*LOST):
                async with operator.watch(instances=True, drains=True) as watching:
                    while True:
                        message = await watching.next()
                        if message.WhichOneof("kind") == "instance" and message.instance.state == "draining":
                            await asyncio.sleep(0.05)
                            await operator.call("AcknowledgeDrained", instance_id=message.instance.instance_id)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(drain())
    try:
        await eventually(lambda: operator.world.leader.shard.drainers.last_seen(KEY.tenant) is not None)
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


async def test_a_rollout_keeps_within_its_limits(tmp_path: Path) -> None:
    """Size 3, one extra, none missing: all three old members drained at once."""
    async with World(tmp_path, configuration(drain="20s", max_surge=1, max_unavailable=0)) as world:
        await world.start()
        operator = await world.operator("acme")
        await outcome(world, Outcome.COMPLETE, revisions=1)
        async with drained(operator):
            watched = Watched(world)
            await change(world, configuration(type="large", drain="20s", max_surge=1, max_unavailable=0))
            await outcome(world, Outcome.COMPLETE, revisions=2)
            await eventually(lambda: types(world) == {"large": 3})
        assert (watched.most, watched.least, watched.draining) == (4, 3, 1)


async def test_files_that_cannot_be_made_halt_the_rollout(tmp_path: Path) -> None:
    """A rotation to a template with a missing secret replaced 4 of 4 workers, and everything said that all is well."""
    async with World(tmp_path, configuration(size=4)) as world:
        await world.start()
        operator = await world.operator("acme")
        await outcome(world, Outcome.COMPLETE, revisions=1)
        watched = Watched(world)
        await change(world, configuration(size=4, type="large", files=TOKEN))
        await outcome(world, Outcome.HALTED, revisions=2)
        assert types(world) == {"small": 4, "large": 1}
        assert watched.made == 1
        shown = await group(operator)
        assert (shown.rollout.outcome, shown.rollout.updated, shown.rollout.outdated) == ("halted", 1, 4)
        assert "data/token" in shown.rollout.message
        plan = await operator.call("PlanGroup", key="web")
        assert [action.action for action in plan.actions] == ["hold"]
        assert (plan.rollout.instances, plan.rollout.at_once) == (4, 1)
        assert plan.rollout.held.startswith("halted")
        events = (await operator.call("ListEvents", group="web")).events
        assert any(e.reason == "rollout-halted" and e.trouble for e in events)
        # Back to the last revision: the old instances have its files already.
        back = await operator.call("RollbackGroup", key="web", dry_run=True)
        assert [action.action for action in back.plan] == ["delete"]
        # Somebody puts it there and lets the rollout go on.
        world.store.tamper("data/token", b"s3cret")
        world.leader.lead_now.agents.nudge()
        await eventually(lambda: all(f.agent.ready for f in world.leader.shard.facts.values()))
        await operator.call("ResumeRollout", key="web")
        await outcome(world, Outcome.COMPLETE, revisions=2)
        assert types(world) == {"large": 4}
        assert (await operator.refused("ResumeRollout", key="web")).status is Status.FAILED_PRECONDITION


async def test_on_failure_rollback_returns_to_the_last_complete_revision(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(max_surge=1, on_failure="rollback")) as world:
        await world.start()
        operator = await world.operator("acme")
        await outcome(world, Outcome.COMPLETE, revisions=1)
        first = current(world).infra_hash
        await change(world, configuration(type="large", files=TOKEN, max_surge=1, on_failure="rollback"))
        await outcome(world, Outcome.COMPLETE, revisions=3)
        assert types(world) == {"small": 3}
        history = (await operator.call("ListRevisions", key="web")).revisions
        assert [(r.outcome, r.by) for r in history] == [
            ("complete", "on_failure"),
            ("rolled-back", "config"),
            ("complete", "config"),
        ]
        assert history[0].revision == first
        shown = await group(operator)
        assert shown.rollout.message.startswith("rolled back")
        assert shown.instance_type == "small"
        # The next change of the configuration ends it.
        await change(world, configuration(type="huge", max_surge=1, on_failure="rollback"))
        await outcome(world, Outcome.COMPLETE, revisions=4)
        assert types(world) == {"huge": 3}
        # Its entry is removed: should somebody want that revision after all, nothing stands in its way.
        await eventually(lambda: not world.leader.lead_now.configuration.dynamic.groups)


async def test_a_group_of_one_without_surge_is_rolled_back(tmp_path: Path) -> None:
    """Its only instance leaves first, so no old one is left when the new revision turns out not to work."""
    update: Json = {"max_surge": 0, "max_unavailable": 1, "max_failures": 1, "on_failure": "rollback"}
    async with World(tmp_path, configuration(size=1, **update)) as world:
        await world.start()
        await outcome(world, Outcome.COMPLETE, revisions=1)
        await change(world, configuration(size=1, type="large", files=TOKEN, **update))
        await outcome(world, Outcome.COMPLETE, revisions=3)
        assert types(world) == {"small": 1}


async def test_rolling_back_and_forward_by_hand(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(max_surge=3)) as world:
        await world.start()
        operator = await world.operator("acme")
        await outcome(world, Outcome.COMPLETE, revisions=1)
        assert (await operator.refused("RollbackGroup", key="web")).status is Status.FAILED_PRECONDITION
        config = operator_pb2.GroupConfig(instance_type="large", vars={"greeting": "hi"})
        await operator.call("UpsertGroup", key="web", config=config)
        await outcome(world, Outcome.COMPLETE, revisions=2)
        await eventually(lambda: all(m.counts or m.state in ENDED for m in world.leader.shard.members(KEY).values()))
        dry = await operator.call("RollbackGroup", key="web", dry_run=True)
        assert {action.action for action in dry.plan} == {"create", "drain"}
        back = operator_pb2.GroupConfig(instance_type="huge")
        planned = (await operator.call("PlanGroup", key="web", config=back)).rollout
        # Three replacements at a time, so three VMs more for as long as it takes.
        assert planned.extra_vm_ms == pytest.approx(3 * planned.estimate_ms, abs=3)  # both are rounded down
        answer = await operator.call("RollbackGroup", key="web")
        assert answer.group.instance_type == "small"
        assert answer.group.vars["greeting"] == "hello"
        await outcome(world, Outcome.COMPLETE, revisions=3)
        assert types(world) == {"small": 3}
        again = await operator.refused("RollbackGroup", key="web")
        assert "`group resume-rollout` ends its rollback" in (again.message or "")
        # A new leader reads it from the bucket.
        await world.leader.active_config.refresh()
        assert types(world) == {"small": 3}
        config = operator_pb2.GroupConfig(instance_type="large", vars={"greeting": "hey"})
        refused = await operator.refused("UpsertGroup", key="web", config=config)
        assert "rolled back" in (refused.message or "")
        await operator.call("ResumeRollout", key="web")
        await outcome(world, Outcome.COMPLETE, revisions=4)
        assert types(world) == {"large": 3}


async def test_a_revision_whose_parts_are_lost_is_refused(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(max_surge=3)) as world:
        await world.start()
        operator = await world.operator("acme")
        await outcome(world, Outcome.COMPLETE, revisions=1)
        for key in [key for key in world.store.contents() if "/revision/" in key]:
            await world.store.delete(key)
        await change(world, configuration(type="large", max_surge=3))
        await outcome(world, Outcome.COMPLETE, revisions=2)
        refused = await operator.refused("RollbackGroup", key="web")
        assert refused.status is Status.FAILED_PRECONDITION
        assert "not in the bucket" in (refused.message or "")
        assert (await operator.refused("RollbackGroup", key="web", revision="ffff")).status is Status.INVALID_ARGUMENT


@pytest.mark.parametrize("pause", ["wait", "100ms"])
async def test_canaries(tmp_path: Path, pause: str) -> None:
    update = {"max_surge": 1, "canary": 1, "pause_after_canary": pause}
    async with World(tmp_path, configuration(**update)) as world:
        await world.start()
        operator = await world.operator("acme")
        await outcome(world, Outcome.COMPLETE, revisions=1)
        await change(world, configuration(type="large", **update))
        if pause == "wait":
            await outcome(world, Outcome.PAUSED, revisions=2)
            assert types(world) == {"small": 2, "large": 1}
            dry = await operator.call("ResumeRollout", key="web", dry_run=True)
            assert "create" in {action.action for action in dry.plan}
            await operator.call("ResumeRollout", key="web")
        await outcome(world, Outcome.COMPLETE, revisions=2)
        assert types(world) == {"large": 3}
        # Until all old ones are deleted, measurements are added.
        await eventually(lambda: all(m.counts or m.state in ENDED for m in world.leader.shard.members(KEY).values()))
        asked = operator_pb2.GroupConfig(instance_type="huge")
        before = (await operator.call("PlanGroup", key="web", config=asked)).rollout
        await change(world, configuration(type="large", max_surge=1))
        without = (await operator.call("PlanGroup", key="web", config=asked)).rollout
        assert before.estimate_ms - without.estimate_ms == pytest.approx(100 if pause == "100ms" else 0, abs=1)


async def test_only_the_revisions_that_are_remembered_stay_in_the_bucket(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(size=0)) as world:
        await world.start()
        for number in range(14):
            await change(world, configuration(size=0, type=f"type-{number}"))
            lead = world.leader.lead_now
            await eventually(lambda lead=lead: all(map(lead.revisions.is_stored, lead.configuration.groups)))  # type: ignore[misc]
            await eventually(lambda number=number: current(world).infra_hash and number >= 0)  # type: ignore[misc]
        keys = [key for key in world.store.contents() if "/revision/" in key]
        assert len(keys) <= 11
