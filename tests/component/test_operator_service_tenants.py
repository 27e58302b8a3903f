"""Two tenants with equal group names never see each other."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status

from component.whole_server import SHARD, Operator, World, config, new_uuid, states
from nstance.model import events as ev
from nstance.model import ids
from nstance.model.decision import Rejection
from nstance.model.events import VmState
from nstance.model.ids import ClusterId, GroupKey, GroupName, TenantId
from nstance.model.vm import SeenVm
from nstance.providers.port import CreateRequest, Scope
from nstance.v1.operator_pb2 import DESCRIPTOR, GroupConfig
from support.eventually import eventually

GROUPS = {
    "acme": {"web": {"template": "web", "size": 2}, "own": {"template": "web", "size": 1}},
    "globex": {"web": {"template": "web", "size": 1}, "other": {"template": "web", "size": 0}},
}
RPCS = {method.name for method in DESCRIPTOR.services_by_name["OperatorService"].methods}


async def test_every_call_across_tenants_finds_nothing_and_changes_nothing(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        owner, stranger = await world.operator("acme"), await world.operator("globex")
        await owner.call("UpsertGroup", key="dynamic", config=GroupConfig(template="web", size=1))
        await eventually(lambda: len(world.leader.shard.instances) == 5)
        await eventually(lambda: all(i.ready_at is not None for i in world.leader.shard.instances.values()))
        [victim] = states(world, "own", "acme")
        unknown = ids.InstanceId("web-01jw51srryegh9snf9cmeh3k4r")
        vm = SeenVm(
            id=unknown,
            provider_id=ids.ProviderId("memory-unknown"),
            state=VmState.RUNNING,
            tenant=TenantId("acme"),
            group=GroupName("own"),
        )
        world.leader.shard.unknown.update([vm], 0.0)
        assert [each.instance_id for each in (await owner.call("ListUnknownVms")).vms] == [unknown]

        # By its name: what another tenant has and what nobody has look the same.
        nobody = ids.InstanceId("web-01jw51srryegh9snf9cmeh3k4q")
        named: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "DeleteGroup": ({"key": "dynamic"}, {"key": "nothing"}),
            "PlanGroup": ({"key": "dynamic"}, {"key": "nothing"}),
            "PauseGroup": ({"key": "own"}, {"key": "nothing"}),
            "ResumeGroup": ({"key": "own"}, {"key": "nothing"}),
            "RollbackGroup": ({"key": "own"}, {"key": "nothing"}),
            "ResumeRollout": ({"key": "own"}, {"key": "nothing"}),
            "ListRevisions": ({"key": "own"}, {"key": "nothing"}),
            "ListInstances": ({"group": "own"}, {"group": "nothing"}),
            "CreateInstance": ({"group": "own", "uuid": new_uuid()}, {"group": "nothing", "uuid": new_uuid()}),
            "DeleteInstance": ({"instance_id": victim}, {"instance_id": nobody}),
            "ReplaceInstance": ({"instance_id": victim}, {"instance_id": nobody}),
            "GetInstanceStatus": ({"instance_id": victim}, {"instance_id": nobody}),
            "AcknowledgeDrained": ({"instance_id": victim}, {"instance_id": nobody}),
            "AdoptInstance": ({"instance_id": unknown}, {"instance_id": nobody}),
            "ReleaseInstance": ({"instance_id": unknown}, {"instance_id": nobody}),
        }
        # Without a name: the answer holds nothing of the other tenant. UpsertGroup makes the stranger's own group.
        unnamed = {"GetConfigStatus", "RefreshConfig", "ListGroups", "UpsertGroup", "Watch", "ListEvents"}
        unnamed |= {"ListUnknownVms", "GetControlPlane"}
        assert named.keys() | unnamed | {"RenewCertificate", "RevokeOperator"} == RPCS  # the last: only for admins

        before, objects = dict(world.leader.shard.instances), world.store.contents()
        for rpc, (theirs, nothing) in named.items():
            refusals = [await stranger.refused(rpc, **fields) for fields in (theirs, nothing)]
            assert [refused.status for refused in refusals] == [Status.NOT_FOUND] * 2, rpc
            assert refusals[0].message == refusals[1].message, rpc
        assert dict(world.leader.shard.instances) == before
        groups = f"shard/{world.leader.active_config.shard}/groups.jsonc"
        assert world.store.contents()[groups] == objects[groups]
        assert await world.operators().is_registered(owner.identity)

        secret = [unknown, *(i.id for i in before.values() if i.tenant == "acme"), "own", "dynamic", "acme"]

        def clean(answer: object) -> bool:
            return not any(word in str(answer) for word in secret)

        for rpc in sorted(unnamed - {"UpsertGroup", "Watch"}):
            assert clean(await stranger.call(rpc)), rpc
        assert clean(await stranger.call("ListEvents", instance_id=victim))
        assert not (await stranger.call("ListEvents", group="own")).events
        async with stranger.watch() as watching:
            assert all(clean(message) for message in await watching.snapshot())
            await owner.call("ReplaceInstance", instance_id=victim)
            await stranger.call("UpsertGroup", key="web", config=GroupConfig(size=3))
            await watching.until(lambda message: message.group.size == 3)
            assert all(clean(message) for message in watching.seen)
        [mine] = [group for group in (await owner.call("ListGroups")).groups if group.key == "web"]
        assert mine.size == 2
        assert len((await stranger.call("ListInstances")).instances) >= 1


async def test_an_acknowledgement_for_another_tenants_instance_is_ignored_and_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is answered as if there were no such instance, and written down where the caller's own people look."""
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        owner, stranger = await world.drainer("acme"), await world.operator("globex")
        await eventually(lambda: "running" in states(world, "own", "acme").values())
        victim = next(iter(states(world, "own", "acme")))
        await owner.call("DeleteInstance", instance_id=victim)
        await eventually(lambda: states(world, "own", "acme")[victim] == "draining")
        refused = await stranger.refused("AcknowledgeDrained", instance_id=victim)
        unknown = await stranger.refused("AcknowledgeDrained", instance_id="web-" + "0" * 26)
        assert (refused.status, refused.message) == (unknown.status, unknown.message)
        assert refused.status is Status.NOT_FOUND
        assert states(world, "own", "acme")[victim] == "draining"

        async def audited(operator: Operator) -> list[str]:
            events = (await operator.call("ListEvents")).events
            return [event.message for event in events if event.reason == "security"]

        message = f"{stranger.identity.id} acknowledged the drain of an instance that this tenant does not have"
        assert await audited(stranger) == [message] * 2
        assert await audited(owner) == []
        assert [getattr(record, "instance", "") for record in caplog.records if record.message == message].count(
            victim
        ) == 1
        assert (await owner.call("AcknowledgeDrained", instance_id=victim)).accepted


async def test_names_that_are_no_names_find_nothing(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        stranger = await world.operator("globex")
        for name in ("../acme/own", "acme/own", "*", "..", "own\0", "ａcme"):
            for rpc, field in (("PlanGroup", "key"), ("DeleteGroup", "key"), ("GetInstanceStatus", "instance_id")):
                assert (await stranger.refused(rpc, **{field: name})).status is Status.NOT_FOUND


async def test_no_tenant_can_tell_which_instance_ids_others_use(tmp_path: Path) -> None:
    """Neither those of on-demand instances, whose UUIDs it may have learned, nor those that the server chose."""
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        owner, stranger = await world.operator("acme"), await world.operator("globex")
        chosen = new_uuid()
        made = await owner.call("CreateInstance", group="web", uuid=chosen)
        [managed] = await eventually(lambda: states(world, "own", "acme"))
        used = [chosen, *(str(uuid.UUID(int=ids.uuid_of(id))) for id in (made.instance_id, managed))]
        answers = {}
        for each in (*used, new_uuid()):
            rehearsed = await stranger.call("CreateInstance", group="web", uuid=each, dry_run=True)
            answer = await stranger.call("CreateInstance", group="web", uuid=each)
            again = await stranger.call("CreateInstance", group="web", uuid=each)
            assert rehearsed.instance_id == answer.instance_id == again.instance_id
            assert (answer.on_demand, answer.state) == (True, "pending")
            answers[each] = answer.instance_id
        assert len({*answers.values(), made.instance_id, managed}) == 6
        # The tenant's own is found by both: the UUID of the request, and the one in its ID, as older servers made it.
        for each in used[:2]:
            assert (await owner.call("CreateInstance", group="web", uuid=each)).instance_id == made.instance_id
        record = world.leader.shard.instances[made.instance_id]
        assert (record.tenant, record.on_demand) == ("acme", True)


async def test_a_uuid_is_answered_alike_whatever_others_did_with_it(tmp_path: Path) -> None:
    """The intent is stored without asking the provider, so the answer cannot depend on what that knows either."""
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        owner, stranger = await world.operator("acme"), await world.operator("globex")
        uuids = {case: new_uuid() for case in ("unused", "existing", "deleted", "elsewhere", "deleted elsewhere")}
        ours = {case: requested_id("globex", each) for case, each in uuids.items()}
        await owner.call("CreateInstance", group="own", uuid=uuids["existing"])
        gone = (await owner.call("CreateInstance", group="own", uuid=uuids["deleted"])).instance_id
        await owner.call("DeleteInstance", instance_id=gone)
        await eventually(lambda: states(world, "own", "acme")[gone] == "deleted")
        for case in ("elsewhere", "deleted elsewhere"):  # another cluster has a tenant of this name
            request = CreateRequest(
                id=ours[case],
                tenant=TenantId("globex"),
                group=GroupName("theirs"),
                kind=ids.Kind("web"),
                template="t",
                created=0.0,
            )
            world.cloud.create(Scope(cluster=ClusterId("far"), shard=SHARD), request)
        world.cloud.destroy(ours["deleted elsewhere"])

        answers = {}
        for case, each in uuids.items():
            unknown = await stranger.refused("GetInstanceStatus", uuid=each)
            assert (unknown.status, unknown.message) == (Status.NOT_FOUND, "there is no such instance"), case
            answers[case] = await stranger.call("CreateInstance", group="web", uuid=each)
            assert answers[case].instance_id == ours[case]
            for field in ("instance_id", "created_unix_ms"):
                answers[case].ClearField(field)
        assert list(answers.values()) == [answers["unused"]] * len(uuids)
        # Two VMs never have one ID. Why an instance fails says whose cluster has the ID, and nothing else about it.
        for case, why in (
            ("elsewhere", f"belongs to shard {SHARD} of cluster far"),
            ("deleted elsewhere", "was deleted"),
        ):
            await eventually(lambda case=case: states(world, "web", "globex")[ours[case]] == "failed")
            message = (await stranger.call("GetInstanceStatus", instance_id=ours[case])).message
            assert message.startswith(f"provider rejected the request: {ours[case]} {why}")
            assert "theirs" not in message


def requested_id(tenant: str, chosen: str) -> ids.InstanceId:
    return ids.instance_id(ids.Kind("web"), ids.requested_uuid(TenantId(tenant), uuid.UUID(chosen).int))


async def test_a_uuid_that_a_tenant_has_used_for_another_group_or_before_is_rejected(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        stranger = await world.operator("globex")
        own = new_uuid()
        spent = await stranger.call("CreateInstance", group="web", uuid=own)
        elsewhere = await stranger.refused("CreateInstance", group="other", uuid=own)
        await stranger.call("DeleteInstance", instance_id=spent.instance_id)
        await stranger.call("AcknowledgeDrained", instance_id=spent.instance_id)
        await eventually(lambda: states(world, "web", "globex")[spent.instance_id] in ("deleting", "deleted"))
        await eventually(lambda: states(world, "web", "globex")[spent.instance_id] == "deleted")
        ended = await stranger.refused("CreateInstance", group="web", uuid=own)
        answers = {(each.status, each.message) for each in (elsewhere, ended)}
        assert answers == {(Status.FAILED_PRECONDITION, "this UUID cannot be used, generate a new one")}


async def test_one_uuid_in_two_groups_at_once_makes_one_instance(tmp_path: Path) -> None:
    """Both are asked before either is decided; also when the first caller is gone by then."""
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        shard = world.leader.shard
        keys = [GroupKey(TenantId("acme"), GroupName(name)) for name in ("web", "own")]
        wanted = ev.InstanceRequested(ids.instance_id(ids.Kind("web"), uuid.UUID(new_uuid()).int))
        asking = [asyncio.create_task(shard.ask(wanted, key=key)) for key in (keys[0], keys[1], keys[0])]
        await asyncio.sleep(0)
        asking[0].cancel()
        outcomes = [await asking[1], await asking[2]]
        assert sorted(outcomes, key=str) == [None, Rejection.EXISTS]
        holder = shard.instances[wanted.id].key
        assert [wanted.id in shard.members(key) for key in keys] == [holder == key for key in keys]


async def test_a_tenant_that_is_not_configured_any_more_can_make_nothing(tmp_path: Path) -> None:
    async with World(tmp_path, config(), agents=False) as world:
        await world.start()
        operator = await world.operator("globex")
        world.configure(config(tenants=("acme",)))
        assert (await operator.call("RefreshConfig")).updated
        refused = await operator.refused("UpsertGroup", key="web", config=GroupConfig(template="web"))
        assert refused.status is Status.FAILED_PRECONDITION
