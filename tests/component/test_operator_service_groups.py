"""Groups through the operator's API: a whole server, real TLS."""

from pathlib import Path

from grpclib.const import Status

from component.whole_server import World, eventually, states
from nstance.v1.operator_pb2 import GroupConfig


async def test_a_dynamic_group_is_made_scaled_and_deleted(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.start()
        operator = await world.operator("acme")
        made = await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=3))
        assert (made.group.size, made.group.static, made.group.tenant) == (3, False, "acme")
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * 3)
        [shown] = (await operator.call("ListGroups")).groups
        assert (shown.actual_size, shown.ready_size, len(shown.provider_ids)) == (3, 3, 3)
        found = await operator.call("ListInstances", group="web")
        assert [i.state for i in found.instances] == ["running"] * 3
        await operator.call("UpsertGroup", key="web", config=GroupConfig(size=1, template="web"), etag=shown.etag)
        stale = await operator.refused("UpsertGroup", key="web", config=GroupConfig(size=9), etag=shown.etag)
        assert stale.status is Status.ABORTED
        await operator.call("DeleteGroup", key="web")
        assert (await operator.refused("DeleteGroup", key="web")).status is Status.NOT_FOUND
        assert not (await operator.call("ListGroups")).groups
