"""Instances through the operator's API: made on demand, replaced, deleted, drained."""

from pathlib import Path

import pytest
from grpclib.const import Status

from component.whole_server import World, config, new_uuid, ready, states
from nstance.model import ids
from nstance.server.api import operator_service as api
from nstance.v1.operator_pb2 import GroupConfig
from nstance.wire import limits
from support.eventually import eventually

GROUPS = {"acme": {"web": {"template": "web", "size": 2}}}


async def test_an_instance_on_demand_is_made_once_and_never_counted(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        operator = await world.operator("acme")
        uuid = new_uuid()
        fields = {"group": "web", "uuid": uuid, "instance_type": "huge", "vars": {"greeting": "hi"}}
        rehearsed = await operator.call("CreateInstance", **fields, dry_run=True)
        assert len(world.leader.shard.instances) == 2
        made = await operator.call("CreateInstance", **fields)
        again = await operator.call("CreateInstance", **fields)
        assert made.instance_id == again.instance_id == rehearsed.instance_id
        assert made.instance_id.startswith("web-")
        assert ids.uuid_of(made.instance_id) >> 80 == int(uuid.replace("-", ""), 16) >> 80  # the time stays
        assert (made.on_demand, made.instance_type, made.group) == (True, "huge", "web")
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * 3)
        await eventually(lambda: world.agents[made.instance_id].connected)
        [group] = (await operator.call("ListGroups")).groups
        assert (group.actual_size, group.on_demand) == (2, 1)
        shown = await operator.call("GetInstanceStatus", instance_id=made.instance_id)
        assert (shown.state, shown.connected, bool(shown.ipv4)) == ("running", True, True)
        assert (await operator.refused("ReplaceInstance", instance_id=made.instance_id)).status is (
            Status.FAILED_PRECONDITION
        )
        await operator.call("DeleteInstance", instance_id=made.instance_id)
        await operator.call("AcknowledgeDrained", instance_id=made.instance_id)
        assert (await operator.call("DeleteInstance", instance_id=made.instance_id)).state in ("deleting", "deleted")
        await eventually(lambda: states(world, "web", "acme")[made.instance_id] == "deleted")
        refused = await operator.refused("CreateInstance", **fields)
        assert refused.status is Status.FAILED_PRECONDITION  # an ID is never used again
        listed = [i.instance_id for i in (await operator.call("ListInstances")).instances]
        assert made.instance_id not in listed
        everything = await operator.call("ListInstances", include_deleted=True)
        assert made.instance_id in [i.instance_id for i in everything.instances]


async def test_instances_are_listed_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_INSTANCES", 3)
    async with World(tmp_path, config(groups={"acme": {"web": {"template": "web", "size": 5}}}), agents=False) as world:
        await world.start()
        operator = await world.operator("acme")
        everything = sorted(await eventually(lambda: states(world, "web", "acme")))
        assert (await operator.refused("ListInstances")).status is Status.RESOURCE_EXHAUSTED
        first = await operator.call("ListInstances", limit=100)
        last = await operator.call("ListInstances", limit=3, after_id=first.instances[-1].instance_id)
        monkeypatch.setattr(limits, "OPERATOR", limits.Limits(max_message=100))
        plan = GroupConfig(template="web", size=0)
        too_much = await operator.refused("PlanGroup", key="web", config=plan)
        assert too_much.status is Status.RESOURCE_EXHAUSTED
        pages = [[i.instance_id for i in page.instances] for page in (first, last)]
        assert (pages, first.more, last.more) == ([everything[:3], everything[3:]], True, False)


async def test_a_dry_run_is_the_decision_itself(tmp_path: Path) -> None:
    """The plan has only what the decision has, and nothing is done."""
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        operator = await world.drainer("acme")
        await eventually(lambda: ready(world, "web", "acme") == 2)
        # The record of the readiness may follow a moment later.
        await eventually(lambda: all(i.ready_at is not None for i in world.leader.shard.instances.values()))
        before = dict(world.leader.shard.instances)
        one = next(iter(before))

        async def plan(rpc: str, **fields: str) -> list[tuple[str, str, str]]:
            answer = await operator.call(rpc, dry_run=True, **fields)
            assert all(action.group == "web" for action in answer.plan)
            return [(action.action, action.instance_id, action.reason) for action in answer.plan]

        assert await plan("DeleteInstance", instance_id=one) == [
            ("create", "", "replace"),
            ("drain", one, "requested"),
        ]
        assert await plan("ReplaceInstance", instance_id=one) == [
            ("create", "", "replace"),
            ("drain", one, "requested"),
        ]
        assert await plan("CreateInstance", group="web", uuid=new_uuid()) == [("create", "", "requested")]
        assert world.leader.shard.instances == before
        await operator.call("PauseGroup")
        for rpc in ("DeleteInstance", "ReplaceInstance"):
            refused = await operator.refused(rpc, instance_id=one, dry_run=True)
            assert refused.status is Status.FAILED_PRECONDITION
        refused = await operator.refused("CreateInstance", group="web", uuid=new_uuid(), dry_run=True)
        assert refused.status is Status.FAILED_PRECONDITION
        await operator.call("ResumeGroup")
        await operator.call("DeleteInstance", instance_id=one)
        await eventually(lambda: states(world, "web", "acme")[one] == "draining")
        assert await plan("DeleteInstance", instance_id=one) == []


async def test_the_vars_of_on_demand_instances_are_bounded(tmp_path: Path) -> None:
    """They are in each record: without a bound a tenant makes journal slots that nobody may read."""
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        operator, other = await world.operator("acme"), await world.operator("globex")
        large = await operator.refused("CreateInstance", group="web", uuid=new_uuid(), vars={"a": "x" * 65_536})
        escaped = await operator.refused("CreateInstance", group="web", uuid=new_uuid(), vars={"a": "\x01" * 11_000})
        for refused in (large, escaped):
            assert refused.status is Status.INVALID_ARGUMENT
            assert (refused.message or "").startswith("vars: expected at most 65,536 bytes of vars, found 6")
        made = [
            await operator.call("CreateInstance", group="web", uuid=new_uuid(), vars={"a": "x" * 65_000})
            for _ in range(16)
        ]
        full = await operator.refused("CreateInstance", group="web", uuid=new_uuid(), vars={"a": "x" * 65_000})
        assert full.status is Status.RESOURCE_EXHAUSTED
        # Also after they have ended, because the records stay for a while. Others, and requests without vars, go on.
        await operator.call("DeleteInstance", instance_id=made[0].instance_id)
        await eventually(lambda: states(world, "web", "acme")[made[0].instance_id] == "deleted")
        full = await operator.refused("CreateInstance", group="web", uuid=new_uuid(), vars={"a": "x" * 65_000})
        assert full.status is Status.RESOURCE_EXHAUSTED
        await operator.call("CreateInstance", group="web", uuid=new_uuid())
        assert (await other.refused("CreateInstance", group="web", uuid=new_uuid())).status is Status.NOT_FOUND


async def test_only_a_uuid_of_version_7_in_its_usual_spelling_is_taken(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        operator = await world.operator("acme")
        good = new_uuid()
        version_4 = good[:14] + "4" + good[15:]
        for uuid in ("", "x", good.replace("-", ""), f"{{{good}}}", f"urn:uuid:{good}", version_4, good + "0"):
            refused = await operator.refused("CreateInstance", group="web", uuid=uuid)
            assert (refused.status, (refused.message or "")[:5]) == (Status.INVALID_ARGUMENT, "uuid:")
        refused = await operator.refused("CreateInstance", group="web", uuid=good, vars={"not a name": "x"})
        assert refused.status is Status.INVALID_ARGUMENT
        assert not any(i.on_demand for i in world.leader.shard.instances.values())


async def test_replacement_comes_first_and_the_old_one_waits_for_its_acknowledgement(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        operator = await world.drainer("acme")
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * 2)
        old = min(states(world, "web", "acme"))
        early = await operator.call("AcknowledgeDrained", instance_id=old)
        assert (early.accepted, "expected a draining instance" in early.message) == (False, True)
        assert states(world, "web", "acme")[old] == "running"
        await operator.call("ReplaceInstance", instance_id=old)
        await eventually(lambda: states(world, "web", "acme")[old] == "draining")
        assert list(states(world, "web", "acme").values()).count("running") == 2
        assert (await operator.refused("ReplaceInstance", instance_id=old)).status is Status.FAILED_PRECONDITION
        assert (await operator.call("AcknowledgeDrained", instance_id=old)).accepted
        assert not (await operator.call("AcknowledgeDrained", instance_id=old)).accepted
        await eventually(lambda: states(world, "web", "acme")[old] == "deleted")
        events = (await operator.call("ListEvents", instance_id=old)).events
        reasons = [event.reason for event in events]
        assert {"requested", "drain-started", "drained"} <= set(reasons)
        assert any("expected a draining instance" in event.message for event in events)  # recorded


async def test_a_drain_stands_still_while_its_group_is_paused(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        operator = await world.drainer("acme")
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * 2)
        one = next(iter(states(world, "web", "acme")))
        await operator.call("DeleteInstance", instance_id=one)
        await eventually(lambda: states(world, "web", "acme")[one] == "draining")
        await operator.call("PauseGroup", key="web")
        answer = await operator.call("AcknowledgeDrained", instance_id=one)
        assert (answer.accepted, "paused" in answer.message) == (True, True)
        assert states(world, "web", "acme")[one] == "draining"
        plan = (await operator.call("ResumeGroup", key="web", dry_run=True)).plan
        assert ("delete", one) in [(action.action, action.instance_id) for action in plan]
        await operator.call("ResumeGroup", key="web")
        await eventually(lambda: states(world, "web", "acme")[one] in ("deleting", "deleted"))


@pytest.mark.parametrize("unseen", [False, True], ids=["configured", "taken out of the file while no server runs"])
async def test_a_deleted_group_drains_by_its_own_timeout(tmp_path: Path, unseen: bool) -> None:
    """Also where its configuration is gone already: it is held until somebody deletes it by name."""
    async with World(tmp_path) as world:
        server = await world.start()
        operator = await world.drainer("acme")
        for name, timeout in (("slow", "12s"), ("quick", "0")):
            group = GroupConfig(template="web", size=1, drain_timeout=timeout)
            await operator.call("UpsertGroup", key=name, config=group)
        for name in ("slow", "quick"):
            await eventually(lambda name=name: list(states(world, name, "acme").values()) == ["running"])
        if unseen:
            await server.stop()
            world.store.tamper(f"shard/{world.shard}/groups.jsonc", b"{}")
            server = await world.start()
            operator = await world.operator("acme")
            await eventually(lambda: server.shard.listed)
            assert set(states(world, "slow", "acme").values()) == {"running"}
        for name in ("slow", "quick"):
            await operator.call("DeleteGroup", key=name)
        await eventually(lambda: list(states(world, "slow", "acme").values()) == ["draining"])
        [slow] = [i for i in server.shard.instances.values() if i.group == "slow"]
        assert slow.drain is not None
        assert slow.drain.deadline - slow.drain.started == pytest.approx(12.0)
        await eventually(lambda: list(states(world, "quick", "acme").values()) in (["deleting"], ["deleted"]))


async def test_a_drain_goes_on_under_a_new_leader_with_the_same_deadline(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        first = await world.start("a")
        operator = await world.drainer("acme")
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * 2)
        await operator.call("UpsertGroup", key="web", config=GroupConfig(size=1))
        await eventually(lambda: "draining" in states(world, "web", "acme").values())
        [old] = [id for id, state in states(world, "web", "acme").items() if state == "draining"]
        deadline = first.shard.instances[old].drain
        await first.stop()
        second = await world.start("b")
        assert second.shard.instances[old].drain == deadline
        [other] = [id for id, state in states(world, "web", "acme").items() if state == "running"]
        fresh = await world.operator("globex")
        assert (await fresh.refused("AcknowledgeDrained", instance_id=old)).status is Status.NOT_FOUND
        await eventually(lambda: second.shard.listed)
        renewed = type(operator)(world, operator.key, operator.certificate_pem)
        assert (await renewed.call("AcknowledgeDrained", instance_id=old)).accepted
        await eventually(lambda: states(world, "web", "acme")[old] == "deleted")
        assert states(world, "web", "acme")[other] == "running"
