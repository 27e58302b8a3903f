"""More examples of the pages about features, run against whole servers: groups, balancers, images, capacity."""

import re
from pathlib import Path
from typing import Any

from aiohttp import web

from component.admin_shell import Shell, shell
from component.test_feature_docs import _page
from component.whole_server import World, config, states
from nstance.config import jsonc
from nstance.model.ids import InstanceId
from nstance.providers.errors import CapacityScope, NoCapacityError
from nstance.providers.memory_behavior import Call, Outcome, Script
from nstance.providers.memory_cloud import Image
from support.eventually import eventually

DOCS = Path(__file__).parents[2] / "docs"


def _example(name: str) -> str:
    """The first one is whole; others on the page may be parts."""
    block, *_ = re.findall(r"```jsonc\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    return str(block)


def _document(name: str) -> dict[str, Any]:
    document: Any = jsonc.read(_example(name), source=name).value
    document["cluster"] |= {"id": "demo", "secrets": config()["cluster"]["secrets"]}
    return dict(document)


async def test_groups(tmp_path: Path) -> None:
    """The file as a person would put it beside the configuration."""
    document = config(groups={"acme": {"api": {"template": "web", "size": 2}}})
    async with World(tmp_path, document) as world:
        world.store.tamper(f"shard/{world.shard}/groups.jsonc", _example("groups.md").encode())
        server = await world.start()
        await eventually(lambda: list(states(world, "workers", "acme").values()) == ["running"] * 3)
        workers = [i for i in server.shard.instances.values() if i.group == "workers"]
        assert {(i.instance_type, i.drain_timeout) for i in workers} == {("large", 120.0)}
        operator = await world.operator("acme")
        api, _ = (await operator.call("ListGroups")).groups
        assert (api.key, api.size, api.paused, api.actual_size) == ("api", 5, True, 0)
        await operator.call("ResumeGroup", key="api")
        await eventually(lambda: list(states(world, "api", "acme").values()) == ["running"] * 5)


async def test_load_balancers(tmp_path: Path) -> None:
    async with World(tmp_path, _document("load-balancers.md")) as world:
        server = await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        vms = {str(i.provider_id) for i in server.shard.instances.values()}
        await eventually(lambda: set(world.cloud.load_balancers.get("front", ())) == vms)
        await admin.ok("group", "scale", "web", "1")
        await eventually(lambda: len(world.cloud.load_balancers["front"]) == 1)


async def test_images_and_userdata(tmp_path: Path) -> None:
    """As on the page, but for the host, which is in this process."""

    async def boot(request: web.Request) -> web.Response:
        return web.Response(text="#!/bin/sh\necho {{ .Instance.ID }}\n")

    app = web.Application()
    app.router.add_get("/boot.sh", boot)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    document = _document("images-and-userdata.md")
    userdata = document["templates"]["web"]["userdata"]
    assert userdata["content"] == "https://files.internal/boot.sh"
    userdata["content"] = f"http://127.0.0.1:{runner.addresses[0][1]}/boot.sh"
    document["shard"]["userdata_hosts"] = ["127.0.0.1"]
    try:
        async with World(tmp_path, document) as world:
            for number, name in enumerate(("base-2026-01", "base-2026-02", "other-2026-03")):
                owner = document["images"]["base"]["owners"][0]
                image = Image(id=f"img-{number}", created=float(number), owner=owner, attributes={"name": name})
                world.cloud.images.append(image)
            await world.start()
            await eventually(lambda: list(states(world, "web").values()) == ["running"] * 3)
            for id, agent in world.agents.items():
                assert agent._request.args["ImageId"] == "img-1"
                script = agent.userdata
                assert script.startswith("#!/bin/sh\n# Installs and starts the Nstance agent.")
                assert "https://files.internal/nstance-agent-linux-" in script
                assert script.endswith(f"\necho {id}\n")
    finally:
        await runner.cleanup()


async def test_capacity(tmp_path: Path) -> None:
    """The first subnet is full: all are in the second one. Then the group goes to zero and comes back."""
    document, commands = _page("capacity.md")

    class Full(Script):
        def outcome(self, call: Call, id: InstanceId | None) -> Outcome:
            if call is Call.CREATE and id and world.leader.shard.instances[id].subnet == "subnet-1":
                return Outcome(applied=False, error=NoCapacityError("InsufficientInstanceCapacity"))
            if call is Call.CREATE and id and world.leader.shard.instances[id].market == "spot":
                error = NoCapacityError("MaxSpotInstanceCountExceeded", scope=CapacityScope.MARKET)
                return Outcome(applied=False, error=error)
            return super().outcome(call, id)

    async with World(tmp_path, document) as world:
        world.cloud.behavior = Full()
        await world.start()
        admin = await shell(world)
        for number, words in enumerate(commands):
            await admin.ok(*words)
            running = [i for i in world.leader.shard.instances.values() if i.state.value == "running"]
            if number == 0:
                assert [i.subnet for i in running] == ["subnet-2"] * 4
                assert {(i.market, i.instance_type) for i in running} == {("on-demand", "m7g.large")}
                await _check_exhausted_offers(admin)
                assert "create-failed" in {each["reason"] for each in await admin.json("events", "--group", "web")}
            elif words[:1] == ["wait"]:
                assert len(running) == (0 if commands[number - 1][-1] == "0" else 1)
        assert len([vm for vm in world.cloud.vms() if vm.status.value == "running"]) == 1


async def _check_exhausted_offers(admin: Shell) -> None:
    """What is shown of the fallback: by group, by instance, in a plan and in the events."""
    group = await admin.json("group", "show", "web")
    assert group["instance_types"] == ["m7g.large", "m6g.large"]
    assert group["markets"] == ["spot", "on-demand"]
    exhausted = {(o["market"], o["instance_type"], o["subnet"]): o for o in group["exhausted_offers"]}
    assert len(exhausted) == 6  # of eight: all on spot, and the first subnet
    assert exhausted["spot", "m6g.large", "subnet-2"]["message"] == "MaxSpotInstanceCountExceeded"
    assert exhausted["on-demand", "m7g.large", "subnet-1"]["retry"]
    assert "spot m7g.large in subnet-2 until " in (await admin.ok("group", "show", "web")).stdout
    instances = await admin.json("instance", "list", "--group", "web")
    assert {each["market"] for each in instances} == {"on-demand"}
    planned = (await admin.ok("group", "plan", "web", "--size", "5")).stdout
    assert "on-demand m7g.large in subnet-2, because of no capacity in spot m7g.large" in " ".join(planned.split())
    messages = [each["message"] for each in await admin.json("events", "--group", "web")]
    assert any("trying on-demand m7g.large in subnet-2: MaxSpotInstanceCountExceeded" in text for text in messages)
