"""Who may call: registered operators, until they are revoked; and what a leader in doubt still does."""

from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from component.whole_server import SECONDS, Operator, World, config, states
from nstance.config.addresses import Service
from nstance.model.ids import TenantId
from nstance.model.roles import Role
from nstance.objects import errors
from nstance.objects.memory import Fate, Verb
from nstance.pki import keys, proof
from nstance.server.waits import Waits
from nstance.v1 import operator_grpc
from nstance.v1.operator_pb2 import GroupConfig, ListGroupsRequest
from nstance.wire.call import call
from support.eventually import eventually

GROUPS = {"acme": {"web": {"template": "web", "size": 1}}}


async def test_a_revoked_operator_is_out_at_once_here(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        revoked, other = await world.operator("acme"), await world.operator("acme", Role.ADMIN)
        async with revoked.watch() as watching:
            await watching.snapshot()
            await other.call("RevokeOperator", operator_id=revoked.identity.id)
            with pytest.raises((GRPCError, StreamTerminatedError, OSError)):
                raise await watching.end()
        assert (await revoked.refused("ListGroups")).status is Status.PERMISSION_DENIED
        assert not await world.operators().is_registered(revoked.identity)
        await other.call("RevokeOperator", operator_id=revoked.identity.id)  # twice is success
        await other.call("RevokeOperator", operator_id=other.identity.id)  # itself: it gets the answer
        assert (await eventually_refused(other)).status is Status.PERMISSION_DENIED


async def eventually_refused(operator: Operator) -> GRPCError:

    async def ask() -> GRPCError | None:
        try:
            await operator.call("ListGroups")
        except GRPCError as error:
            return error
        except (OSError, StreamTerminatedError):
            pass
        return None

    return await eventually(ask)


async def test_one_revoked_elsewhere_is_out_when_it_is_looked_at_again(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        world.waits = Waits(admission=0.05, watch_admission=0.05, watch_admission_interval=0.05)
        await world.start()
        operator = await world.operator("acme")
        async with operator.watch() as watching:
            await watching.snapshot()
            await world.operators().revoke(TenantId("acme"), operator.identity.id)
            assert (await watching.end()).status is Status.PERMISSION_DENIED
        assert (await operator.refused("ListGroups")).status is Status.PERMISSION_DENIED


async def test_renewal_with_the_same_and_with_a_new_key(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        operator = await world.operator("acme")
        same = await operator.call("RenewCertificate")
        assert same.certificate_pem != operator.certificate_pem
        assert same.ca_bundle_pem == world.ca_pem
        renewed = Operator(world, operator.key, same.certificate_pem)
        assert (renewed.identity, len((await renewed.call("ListGroups")).groups)) == (operator.identity, 1)

        key = keys.generate(world.rng)
        pem = keys.public_to_pem(keys.public_bytes(key))
        sealed = proof.prove_renewal(key, cluster=operator.identity.cluster, id=operator.identity.id)
        wrong = proof.prove_renewal(operator.key, cluster=operator.identity.cluster, id=operator.identity.id)
        refused = await renewed.refused("RenewCertificate", public_key_pem=pem, proof=wrong)
        assert refused.status is Status.INVALID_ARGUMENT
        fresh = await renewed.call("RenewCertificate", public_key_pem=pem, proof=sealed)
        await Operator(world, key, fresh.certificate_pem).call("ListGroups")


async def test_an_agent_is_not_an_operator(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"])
        [agent] = world.agents.values()
        await eventually(lambda: agent.connected)
        channel = world.channel(Service.OPERATOR, certificate_pem=agent.certificate_pem, key=agent.key)
        with pytest.raises(GRPCError) as refused:
            await call(operator_grpc.OperatorServiceStub(channel).ListGroups, ListGroupsRequest(), timeout=SECONDS)
        assert refused.value.status is Status.PERMISSION_DENIED


CHANGES = {
    "RefreshConfig": {},
    "UpsertGroup": {"key": "new", "config": GroupConfig(template="web")},
    "DeleteGroup": {"key": "web"},
    "PauseGroup": {},
    "ResumeGroup": {},
    "CreateInstance": {"group": "web"},
    "DeleteInstance": {"instance_id": "x"},
    "ReplaceInstance": {"instance_id": "x"},
    "AcknowledgeDrained": {"instance_id": "x"},
    "RevokeOperator": {"operator_id": "x"},
    "RenewCertificate": {},
}


async def test_a_leader_in_doubt_shows_what_it_knows_and_changes_nothing(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        server = await world.start()
        operator = await world.operator("acme", Role.ADMIN)
        await operator.call("ListGroups")
        term = server.shard.term
        term.confirm = lambda *args, **kwargs: None  # type: ignore[method-assign]
        term.revoke()
        for rpc, fields in CHANGES.items():
            assert (await operator.refused(rpc, **fields)).status is Status.UNAVAILABLE, rpc
        assert len((await operator.call("ListGroups")).groups) == 1
        await operator.call("ListInstances")
        await operator.call("GetConfigStatus")
        await operator.call("PlanGroup", key="web")
        await operator.call("ListEvents")
        async with operator.watch() as watching:
            await watching.snapshot()


async def test_while_storage_is_silent_a_known_operator_stays_and_a_stranger_waits(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        world.waits = Waits(admission=0.0)
        await world.start()
        known, stranger = await world.operator("acme"), await world.operator("acme")
        await known.call("ListGroups")

        def fate(verb: Verb, key: str) -> Fate:
            return Fate(error=errors.UnavailableError("no")) if key.startswith("cluster/operator/") else Fate()

        world.fate = fate
        await known.call("ListGroups")
        assert (await stranger.refused("ListGroups")).status is Status.UNAVAILABLE


async def test_configuration_is_refreshed_and_a_bad_one_refused_with_its_errors(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        server = await world.start()
        operator = await world.operator("acme")
        before = await operator.call("GetConfigStatus")
        assert (before.cluster, before.shard, before.leader, before.epoch) == ("demo", "zone-a", "a", 1)
        assert before.last_modified_unix > 0
        assert not before.errors
        nothing = await operator.call("RefreshConfig")
        assert (nothing.updated, nothing.etag) == (False, before.etag)

        bad = {
            "acme": {"web": {"template": "nope", "size": 1}},
            "globex": {"hidden": {"template": "nope", "size": 1}},
        }
        world.configure(config(groups=bad))
        refused = await operator.call("RefreshConfig")
        assert (refused.updated, refused.etag) == (False, before.etag)
        assert "groups.acme.web.template" in refused.errors[0]
        assert "hidden" not in str(refused)
        assert list((await operator.call("GetConfigStatus")).errors) == list(refused.errors)
        assert server.lead_now.configuration.groups

        world.configure(config(groups=GROUPS, advertise={"operator_addr": "127.0.0.1:1"}))
        taken = await operator.call("RefreshConfig")
        assert (taken.updated, taken.previous_etag) == (True, before.etag)
        assert list(taken.needs_restart) == ["shard.advertise.operator_addr"]
        assert not taken.errors
