"""The agent from an object of the bucket: a group waits for its signed URL, and says why if the store cannot sign."""

from pathlib import Path

from component.whole_server import Json, World, config, states
from support.eventually import eventually


def configuration(agent: Json) -> Json:
    made = config(groups={"acme": {"web": {"template": "web", "size": 1}}})
    template = made["templates"]["web"] | {"userdata": {"base": "agent", "content": "echo own part\n"}}
    return made | {"templates": {"web": template}, "agent": agent}


async def test_a_store_that_cannot_sign_blocks_the_group_until_there_is_a_url(tmp_path: Path) -> None:
    async with World(tmp_path, configuration({"object": "agents/{arch}.tar.gz"})) as world:
        server, operator = await world.start(), await world.operator("acme")
        reasons = server.lead_now.blocked_groups.reasons
        await eventually(lambda: "can be signed" in str(world.leader.lead_now.blocked_groups.reasons), str(reasons))
        [group] = (await operator.call("ListGroups")).groups
        assert group.last_error.startswith("no URL of the agent at agents/amd64.tar.gz can be signed: expected a store")
        assert states(world, "web", "acme") == {}
        world.configure(configuration({"url": "https://files.example.com/agent-{arch}"}))
        await server.active_config.refresh()
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"])
        [instance] = states(world, "web", "acme")
        script = world.agents[instance].userdata
        assert "url='https://files.example.com/agent-amd64'" in script
        assert script.endswith("echo own part\n")
