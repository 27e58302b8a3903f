"""Every call of the operator API with every role, in the own tenant and in another one.

The tables have a row for each call of the proto: a new call without one fails here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from component.whole_server import Operator, World, config, new_uuid, ready, states
from nstance.model import actors
from nstance.model.ids import TenantId
from nstance.model.roles import Role
from nstance.server.api.permissions import REQUIRED
from nstance.server.leader.assembly import record_console_output
from nstance.v1 import operator_pb2
from nstance.v1.operator_pb2 import DESCRIPTOR, GroupConfig
from nstance.wire.call import PERSON_HEADER, ROLE_HEADER, TENANT_HEADER
from support.eventually import eventually

SERVICE = DESCRIPTOR.services_by_name["OperatorService"]
GROUPS = {
    tenant: {"web": {"template": "web", "size": 2}, "own": {"template": "web", "size": 1}}
    for tenant in ("acme", "globex")
}
TENANTS = ("acme", "globex")
UNKNOWN_OPERATOR = "opr-01jw51srryegh9snf9cmeh3k4q"


def requests(instance: str) -> dict[str, dict[str, Any]]:
    """For each call one that changes something, if it is a call that changes anything."""
    return {
        "GetConfigStatus": {},
        "RefreshConfig": {},
        "ListGroups": {},
        "UpsertGroup": {"key": "web", "config": GroupConfig(size=3)},
        "DeleteGroup": {"key": "dynamic"},
        "PlanGroup": {"key": "web"},
        "PauseGroup": {"key": "own"},
        "ResumeGroup": {"key": "own"},
        "ListInstances": {},
        "CreateInstance": {"group": "web", "uuid": new_uuid()},
        "DeleteInstance": {"instance_id": instance},
        "GetInstanceStatus": {"instance_id": instance},
        "ReplaceInstance": {"instance_id": instance},
        "RollbackGroup": {"key": "web"},
        "ResumeRollout": {"key": "web"},
        "ListRevisions": {"key": "web"},
        "ListUnknownVms": {},
        "AdoptInstance": {"instance_id": instance},
        "ReleaseInstance": {"instance_id": instance},
        "AcknowledgeDrained": {"instance_id": instance},
        "Watch": {"drains": True},
        "ListEvents": {},
        "GetControlPlane": {},
        "RevokeOperator": {"operator_id": UNKNOWN_OPERATOR},
        "RenewCertificate": {},
    }


# Watch is asked with `drains`; without, see below.
LOWEST = {**REQUIRED, "Watch": Role.DRAINER}
PERMANENT = "RenewCertificate"  # every role renews its own certificate, which is a change in storage


async def outcome(operator: Operator, rpc: str, fields: Mapping[str, Any], metadata: Mapping[str, str]) -> Status:
    try:
        if rpc != "Watch":
            await operator.call(rpc, metadata=metadata, **fields)
            return Status.OK
        async with operator.stub.Watch.open(metadata=metadata) as stream:
            await stream.send_message(operator_pb2.WatchRequest(**fields), end=True)
            await stream.recv_message()
            await stream.cancel()
    except GRPCError as refused:
        return refused.status
    return Status.OK


def test_every_call_has_a_role_and_a_request_here() -> None:
    rpcs = {method.name for method in SERVICE.methods}
    assert REQUIRED.keys() == rpcs
    assert requests("x").keys() == rpcs


async def test_every_call_with_every_role_in_every_tenant(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        owner = await world.operator("acme")
        await owner.call("UpsertGroup", key="dynamic", config=GroupConfig(template="web", size=0))
        await eventually(lambda: len(world.leader.shard.instances) == 6)
        await eventually(lambda: all(i.ready_at is not None for i in world.leader.shard.instances.values()))
        operators = {role: await world.operator("acme", role) for role in Role}
        rows = requests(states(world, "own", "acme").popitem()[0])
        foreign = requests(states(world, "own", "globex").popitem()[0])
        before = _visible(world)

        def expected(rpc: str, role: Role, tenant: str) -> bool:
            return role.allows(LOWEST[rpc]) and (tenant == "acme" or role is Role.ADMIN)

        wrong = []
        cases = [(rpc, role, tenant) for rpc in rows for role in Role for tenant in TENANTS]
        for allowed in (False, True):  # first all that must change nothing
            for rpc, role, tenant in cases:
                if expected(rpc, role, tenant) is not allowed:
                    continue
                fields = (rows if tenant == "acme" else foreign)[rpc]
                metadata = {} if tenant == "acme" else {TENANT_HEADER: tenant}
                found = await outcome(operators[role], rpc, fields, metadata)
                if (found is Status.PERMISSION_DENIED) is allowed:
                    wrong.append((rpc, role.value, tenant, found))
            if not allowed:
                assert _visible(world) == before
                assert world.leader.shard.drainers.last_seen(TenantId("acme")) is None
        assert wrong == []
        assert _visible(world) != before  # the others do work


async def test_a_person_behind_an_operator_may_do_no_more_than_its_own_role_and_no_less_than_a_dry_run(
    tmp_path: Path,
) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        operators = {role: await world.operator("acme", role) for role in Role}
        asked = {rpc: fields for rpc, fields in requests("web-01jw51srryegh9snf9cmeh3k4q").items() if rpc != PERMANENT}
        wrong = []
        for rpc, fields in asked.items():
            for role in Role:
                if not role.allows(LOWEST[rpc]):
                    found = await outcome(operators[Role.ADMIN], rpc, fields, {ROLE_HEADER: role.value})
                    if found is not Status.PERMISSION_DENIED:
                        wrong.append((rpc, role.value, found))
        assert wrong == []
        raised = await outcome(operators[Role.VIEWER], "PauseGroup", {"key": "web"}, {ROLE_HEADER: "admin"})
        assert raised is Status.PERMISSION_DENIED
        odd = await outcome(operators[Role.ADMIN], "ListGroups", {}, {ROLE_HEADER: "root"})
        assert odd is Status.INVALID_ARGUMENT

        before = _visible(world)
        for method in SERVICE.methods:
            if "dry_run" in method.input_type.fields_by_name:
                fields = {**asked[method.name], "dry_run": True}
                found = await outcome(operators[Role.VIEWER], method.name, fields, {})
                assert found is not Status.PERMISSION_DENIED, method.name
        assert _visible(world) == before
        async with operators[Role.VIEWER].watch() as watching:
            await watching.snapshot()
        assert world.leader.shard.drainers.last_seen(TenantId("acme")) is None


@pytest.mark.parametrize("tenant", ["nobody", "Not A Name"])
async def test_an_admin_finds_no_tenant_that_is_not_configured(tmp_path: Path, tenant: str) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        admin = await world.operator("acme", Role.ADMIN)
        assert await outcome(admin, "ListGroups", {}, {TENANT_HEADER: tenant}) is Status.NOT_FOUND


async def test_a_role_survives_renewal(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        viewer = await world.operator("acme", Role.VIEWER)
        renewed = await viewer.call("RenewCertificate")
        again = Operator(world, viewer.key, renewed.certificate_pem)
        assert again.identity.role is Role.VIEWER
        assert await outcome(again, "PauseGroup", {"key": "web"}, {}) is Status.PERMISSION_DENIED


async def test_changes_that_are_about_no_instance_name_who_asked(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        admin, other = await world.operator("acme", Role.ADMIN), await world.operator("globex")
        metadata = {TENANT_HEADER: "globex", PERSON_HEADER: "ada"}
        await admin.call("RevokeOperator", operator_id=other.identity.id, metadata=metadata)
        world.configure(config(groups={**GROUPS, "globex": {"web": {"template": "web", "size": 1}}}))
        await admin.call("RefreshConfig", metadata=metadata)
        found = [each.message for each in (await admin.call("ListEvents", metadata=metadata)).events]
        who = f"{admin.identity.id} for ada"
        assert f"operator {other.identity.id} revoked by {who}" in found
        assert any(message.endswith(f"activated by {who}") for message in found)


async def test_an_agent_names_nobody_as_the_one_who_asked(tmp_path: Path) -> None:
    """What a VM says is quoted in the history, which the audit reads for names."""
    forged = f"deletion requested by {UNKNOWN_OPERATOR} for ada@example.com"
    async with World(tmp_path, config(groups={"acme": {"own": {"template": "web", "size": 1}}})) as world:
        await world.start()
        await eventually(lambda: ready(world, "own", "acme") == 1)
        [agent] = world.agents.values()
        log = world.leader.shard.event_log
        agent.on_receive_problem = forged
        agent.report()
        instance = world.leader.shard.instances[agent.id]
        record_console_output(world.leader.lead_now.issuer, log, instance, f"boot\n{forged}")
        viewer = await world.operator("acme", Role.VIEWER)

        async def quoted() -> list[str]:
            found = (await viewer.call("ListEvents")).events
            return [each.message for each in found if "ada@example.com" in each.message]

        async def all_are_quoted() -> bool:
            return len({each[:12] for each in await quoted()}) >= 2  # the command after its files, and the console

        await eventually(all_are_quoted)
        assert [actors.named(message) for message in await quoted() if actors.named(message)] == []


def _visible(world: World) -> tuple[Any, ...]:
    """All that a call could have changed, except registrations and the history."""
    kept = {key: body for key, body in world.store.contents().items() if key.endswith(("groups.jsonc", "config.jsonc"))}
    return dict(world.leader.shard.instances), kept, world.leader.active_config.configuration.dynamic
