"""Every action: its plan first, then the change, and who asked for it in the history."""

from pathlib import Path
from typing import Any

from component.http_world import OPEN, get_json, served
from component.whole_server import SHARD, World, config, states
from support.eventually import eventually
from ui.browsing import Tab, tab

GROUPS = {"default": {"web": {"template": "web", "size": 2, "drain_timeout": "0"}}}
HERE = {"shard": str(SHARD)}


async def act(page: Tab, button: str, plan: str, verb: str) -> None:
    await page.page.get_by_role("button", name=f"{button}…").click()
    dialog = page.page.get_by_role("dialog")
    await dialog.get_by_text(plan).first.wait_for()
    await dialog.get_by_role("button", name=verb, exact=True).click()
    await page.page.wait_for_selector("dialog", state="detached")


async def test_every_action(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        await eventually(lambda: sum(i.ready_at is not None for i in world.leader.shard.instances.values()) == 2)
        async with served(world, guard=OPEN) as browser, tab(chromium, browser) as page:

            async def group(name: str = "web") -> Any:
                return (await get_json(browser, f"/v1/groups/{name}", **HERE))["groups"][0]

            await page.open(f"group/{SHARD}/web")
            await page.page.get_by_role("button", name="Scale…").click()
            await page.page.get_by_label("Number of instances").fill("3")
            await page.page.get_by_role("button", name="Show plan").click()
            await page.see("a new instance")
            assert (await group())["size"] == 2  # the plan changes nothing
            await page.page.get_by_role("button", name="Scale", exact=True).click()
            await page.page.wait_for_selector("dialog", state="detached")
            assert "for local" in (await group())["size_source"]["by"]
            await eventually(lambda: [*states(world, "web").values()].count("running") == 3)

            await act(page, "Pause", "No instance is created", "Pause")
            assert (await group())["paused"]
            await act(page, "Resume", "No instance is touched", "Resume")
            assert not (await group())["paused"]

            first, second = [id for id, state in states(world, "web").items() if state == "running"][:2]
            await page.open(f"instance/{SHARD}/{first}")
            await act(page, "Replace", "a new instance", "Replace")
            await eventually(lambda: states(world, "web").get(first, "deleted") == "deleted")
            await page.see("deleted")
            await page.open(f"instance/{SHARD}/{second}")
            await act(page, "Drain and delete", second, "Drain and delete")
            await eventually(lambda: states(world, "web").get(second, "deleted") == "deleted")

            async with browser.post(
                "/v1/groups", params=HERE, json={"group": "extra", "template": "web", "size": 1, "drain_timeout": "60s"}
            ) as answer:
                assert answer.status == 200
            await eventually(lambda: "running" in states(world, "extra").values())
            [draining] = states(world, "extra")
            await world.drainer()
            await page.open(f"instance/{SHARD}/{draining}")
            await act(page, "Drain and delete", draining, "Drain and delete")
            await page.see("End drain…")
            await act(page, "End drain", "its drain is acknowledged", "End drain")
            await eventually(lambda: states(world, "extra").get(draining, "deleted") in ("deleting", "deleted"))
            await page.open(f"group/{SHARD}/extra")
            await act(page, "Delete", "The group and all its instances", "Delete")
            await page.see("There is no group extra")
            found = (await get_json(browser, "/v1/events", limit="1000"))["events"]
            assert any("for local" in each["message"] for each in found if each["reason"] == "requested")


async def test_a_rollout_is_shown_held_and_steered(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        await eventually(lambda: sum(i.ready_at is not None for i in world.leader.shard.instances.values()) == 2)
        async with served(world, guard=OPEN) as browser, tab(chromium, browser) as page:
            new = {
                "group": "api",
                "template": "web",
                "size": 3,
                "drain_timeout": "0",
                "max_surge": 1,
                "canary": 1,
                "pause_after_canary": "wait",
            }
            async with browser.post("/v1/groups", params=HERE, json=new) as answer:
                assert answer.status == 200

            async def outcome() -> str:
                rollout = (await get_json(browser, "/v1/groups/api", **HERE))["groups"][0]["rollout"]
                return rollout["outcome"] if rollout else ""

            async def complete() -> bool:
                return await outcome() == "complete"

            async def paused() -> bool:
                return await outcome() == "paused"

            await eventually(complete)
            async with browser.patch("/v1/groups/api", params=HERE, json={"instance_type": "large"}) as answer:
                assert answer.status == 200
            await eventually(paused)
            await page.open()
            await page.see("rollout paused")
            await page.open(f"group/{SHARD}/api")
            await act(page, "Resume rollout", "drain", "Resume rollout")
            await eventually(complete)
            await page.see("complete")
            await act(page, "Roll back", "To the last revision", "Roll back")
            await eventually(complete)
            assert (await get_json(browser, "/v1/groups/api", **HERE))["groups"][0]["rollout"]["message"]
