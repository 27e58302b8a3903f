"""The examples of the pages about features: each page's configuration, its commands in their order, and what it promises."""

import re
import shlex
from pathlib import Path
from typing import Any

from component.admin_shell import Shell, shell
from component.whole_server import World, config, ready, states
from nstance.config import jsonc
from support.eventually import eventually

DOCS = Path(__file__).parents[2] / "docs"


def _page(name: str) -> tuple[dict[str, Any], list[list[str]]]:
    text = (DOCS / name).read_text()
    [block] = re.findall(r"```jsonc\n(.*?)```", text, re.DOTALL)
    [console] = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    document: Any = jsonc.read(block, source=name).value
    document["shard"]["infra"]["provider"] = "memory"  # the cloud of these tests; test_docs_pages.py uses the page's
    document["cluster"] |= {"id": "demo", "secrets": config()["cluster"]["secrets"]}
    return document, [shlex.split(line.removeprefix("$ nstance-admin ")) for line in console.splitlines()]


async def _reasons(admin: Shell, *words: str) -> set[str]:
    return {each["reason"] for each in await admin.json("events", *words)}


async def test_draining(tmp_path: Path) -> None:
    document, commands = _page("draining.md")
    async with World(tmp_path, document) as world:
        await world.start()
        admin = await shell(world)
        operator = await world.drainer()
        await admin.ok("wait")
        web = next(iter(states(world, "web")))
        for words in commands:
            await admin.ok(*(word.replace("WEB", web) for word in words))
        # Its successor is there while it still waits to be emptied, for as long as the page says.
        await eventually(lambda: sorted(states(world, "web").values()) == ["draining", "running", "running"])
        old = await operator.call("GetInstanceStatus", instance_id=web)
        assert old.state == "draining"
        assert 240 < old.drain_deadline_unix_ms / 1000 - world.clock.wall() <= 300
        await operator.call("AcknowledgeDrained", instance_id=web)
        await eventually(lambda: states(world, "web")[web] == "deleted")
        answer = await operator.call("AcknowledgeDrained", instance_id=web)
        assert not answer.accepted
        cache = next(iter(states(world, "cache")))
        await admin.ok("instance", "delete", cache)
        await eventually(lambda: states(world, "cache")[cache] == "deleted")


async def test_expiry(tmp_path: Path) -> None:
    document, commands = _page("expiry.md")
    async with World(tmp_path, document) as world:
        await world.start()
        admin = await shell(world)
        await eventually(lambda: list(states(world, "web").values()).count("running") == 2)
        first = set(states(world, "web"))

        def renewed() -> bool:
            now = states(world, "web")
            # Never fewer than two, the whole time.
            assert sum(state in ("running", "draining", "deleting") for state in now.values()) >= 2
            return all(now.get(one, "deleted") == "deleted" for one in first)

        await eventually(renewed)
        for words in commands:
            await admin.ok(*words)
        assert "eligible-expiry" in await _reasons(admin, "--group", "web")


async def test_rotation(tmp_path: Path) -> None:
    document, commands = _page("rotation.md")
    async with World(tmp_path, document) as world:
        server = await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        before = set(states(world, "web"))
        pushed, tried, changed = (
            next(number for number, words in enumerate(commands) if wanted <= set(words))
            for wanted in ({"--var"}, {"--dry-run"}, {"--instance-type"})
        )
        assert pushed < tried == changed  # the first command with a new type is the one that only tries
        for words in commands[: tried + 1]:
            await admin.ok(*words)
        assert {each for each, state in states(world, "web").items() if state == "running"} == before
        lowest = 3

        def look(_: object) -> None:
            nonlocal lowest
            lowest = min(lowest, sum(state == "running" for state in states(world, "web").values()))

        server.shard.commits.subscribe(look)
        back = commands.index(["group", "rollback", "web"])
        for words in commands[tried + 1 : back]:
            await admin.ok(*words)
        assert lowest == 3
        now = await admin.json("instance", "list", "--group", "web")
        assert {each["instance_type"] for each in now} == {"large"}
        assert {each["instance_id"] for each in now}.isdisjoint(before)
        for words in commands[back:]:
            await admin.ok(*words)
        assert lowest == 3
        now = await admin.json("instance", "list", "--group", "web")
        assert {each["instance_type"] for each in now} == {"small"}
        history = await admin.json("group", "history", "web")
        assert [each["outcome"] for each in history] == ["complete", "rolled-back", "complete"]
        assert {"config-drift", "rollout"} <= await _reasons(admin, "--group", "web")


async def test_healing(tmp_path: Path) -> None:
    """One silent agent is replaced; three of five are not, and nothing has changed when they are back."""
    document, commands = _page("healing.md")
    async with World(tmp_path, document) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        lonely = next(iter(states(world, "web")))
        world.agents[lonely].mute()
        await eventually(lambda: states(world, "web")[lonely] == "deleted")
        await admin.ok("wait")
        whole = {one for one, state in states(world, "web").items() if state == "running"}
        silent = sorted(whole)[:3]
        operator = await world.operator()
        async with operator.watch(errors=True) as watching:
            await watching.snapshot()
            for one in silent:
                world.agents[one].mute()
            await watching.have(lambda message: message.error.reason == "mass-silence")
        for words in commands:
            await admin.ok(*words)
        for one in silent:
            world.agents[one].speak()
        await eventually(lambda: all(world.agents[one].connected for one in silent))
        await admin.ok("wait")
        assert {one for one, state in states(world, "web").items() if state == "running"} == whole


async def test_readiness(tmp_path: Path) -> None:
    document, commands = _page("readiness.md")
    document["shard"]["infra"]["provider"] = "memory"  # real agents run these checks in tests/e2e/test_readiness.py
    async with World(tmp_path, document) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        web = next(iter(states(world, "web")))
        assert {check.name for check in world.agents[web].checks.checks} == {"web", "disk"}
        assert world.leader.shard.desired_groups[world.leader.shard.instances[web].key].unhealthy_after == 900
        world.agents[web].fail("web", "answered 500")
        await eventually(lambda: ready(world, "web") == 1)
        *looks, wait = commands
        for words in looks:
            shown = await admin.ok(*(word.replace("WEB", web) for word in words))
            assert "failing checks: web" in shown.stdout
        assert wait[0] == "wait"
        world.agents[web].fail("web", "")
        await admin.ok(*wait)


async def test_costs(tmp_path: Path) -> None:
    document, commands = _page("costs.md")
    async with World(tmp_path, document) as world:
        await world.start()
        admin = await shell(world)
        results = {tuple(words): await admin.ok(*words) for words in commands}
        assert "0.2448 USD/h" in results["group", "list"].stdout
        assert "0.408 USD afterwards" in results["group", "scale", "web", "5", "--dry-run"].stderr
        [promised] = re.findall(r"```text\n(.*?)```", (DOCS / "costs.md").read_text(), re.DOTALL)
        notes = results["group", "plan", "web", "--instance-type", "m7g.xlarge"].stderr
        assert [line in notes for line in promised.splitlines()] == [True, True]
