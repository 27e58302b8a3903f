"""Prices in the configuration, and costs wherever a group, a plan or a fleet is shown."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from component.admin_shell import shell
from component.http_world import OPEN, check, get_json, post, served
from component.whole_server import SHARD, World, config
from nstance.admin.http.v1 import schemas
from nstance.config.addresses import Service
from support.eventually import eventually

PRICES = {"currency": "EUR", "hourly": {"small": 0.1, "large": {"on-demand": 0.4, "spot": 0.15}}}
GROUPS = {"default": {"web": {"template": "web", "size": 3, "drain_timeout": "0"}}}
HERE = {"shard": str(SHARD)}


async def ready(world: World, count: int = 3) -> None:
    await eventually(lambda: sum(i.ready_at is not None for i in world.leader.shard.instances.values()) == count)


async def metrics(world: World) -> dict[str, float]:
    port = world.leader.base + list(Service).index(Service.HEALTH)
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


async def test_costs_on_the_command_line(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS, prices=PRICES)) as world:
        await world.start()
        await ready(world)
        admin = await shell(world)
        [group] = await admin.json("group", "list")
        assert group["cost"] == {"currency": "EUR", "hourly": 0.3, "instance_hourly": 0.1, "unpriced": 0}
        assert "0.3 EUR/h" in (await admin.ok("group", "list")).stdout
        assert "0.3 EUR per hour; one more instance 0.1 EUR" in (await admin.ok("group", "show", "web")).stdout
        assert "0.3 EUR/h" in (await admin.ok("status")).stdout
        assert "cost: 0.3 EUR per hour, as now" in (await admin.ok("group", "plan", "web")).stderr
        scaled = await admin.ok("group", "scale", "web", "12", "--dry-run")
        assert "cost: 0.3 EUR per hour now, 1.20 EUR afterwards" in scaled.stderr
        larger = await admin.ok("group", "update", "web", "--instance-type", "large", "--dry-run")
        assert "cost: 0.3 EUR per hour now, 1.20 EUR afterwards" in larger.stderr
        unknown = await admin.ok("group", "plan", "web", "--instance-type", "huge")
        assert "0.3 EUR per hour now, unknown (no price) afterwards" in unknown.stderr
        # Boots and drains are measured by now, so that the rollout itself has a cost.
        await admin.ok("group", "update", "web", "--instance-type", "large", "--wait", "--within", "60s")
        again = await admin.ok("group", "plan", "web", "--instance-type", "small")
        assert "cost: 1.20 EUR per hour now, 0.3 EUR afterwards; about 0" in again.stderr
        back = await admin.ok("group", "rollback", "web", "--dry-run")
        assert "3 instances to replace" in back.stderr
        assert "0.3 EUR afterwards" in back.stderr


async def test_costs_over_http_and_in_metrics(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS, prices=PRICES)) as world:
        await world.start()
        await ready(world)
        async with served(world, guard=OPEN) as browser:
            [group] = (await get_json(browser, "/v1/groups"))["groups"]
            check(group, schemas.SCHEMAS["Group"], schemas.SCHEMAS)
            assert group["cost"]["hourly"] == 0.3
            plan = await post(browser, "/v1/groups/web/scale", {"size": 5}, dry_run="true", **HERE)
            check(plan, schemas.SCHEMAS["Change"], schemas.SCHEMAS)
            assert plan["costs"] == [
                {"shard": SHARD, "currency": "EUR", "hourly_before": 0.3, "hourly_after": 0.5, "once": 0.0}
            ]
            assert (await get_json(browser, "/v1/groups/web/plan"))["costs"][0]["hourly_after"] == 0.3
        found = await metrics(world)
        labels = 'currency="EUR",group="web",market="{}",tenant="default"'
        assert found[f"nstance_group_cost_per_hour{{{labels.format('on-demand')}}}"] == 0.3
        assert found[f"nstance_group_cost_per_hour{{{labels.format('spot')}}}"] == 0
        assert found['nstance_instances_unpriced{group="web",tenant="default"}'] == 0


async def test_new_prices_reach_watchers_and_replace_nothing(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        await ready(world)
        before = set(world.leader.shard.instances)
        async with served(world, guard=OPEN) as browser:
            [group] = (await get_json(browser, "/v1/groups"))["groups"]
            assert group["cost"] is None
            plan: Any = await get_json(browser, "/v1/groups/web/plan")
            assert plan["costs"] == []
            assert not any("cost" in name or "unpriced" in name for name in await metrics(world))
            world.configure(config(groups=GROUPS, prices={"hourly": {"large": 1}}))
            await world.leader.active_config.refresh()

            async def shown() -> Any:
                async with browser.get("/v1/watch", headers={"Accept": "text/event-stream"}) as stream:
                    async for line in stream.content:
                        if line.startswith(b"data: "):
                            return b'"unpriced":3' in line and b'"instance_hourly":null' in line
                return False

            async with asyncio.timeout(30):
                await eventually(shown)
        assert set(world.leader.shard.instances) == before


async def test_vms_without_a_price_are_never_shown_as_free(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS, prices={"hourly": {"large": 1}})) as world:
        await world.start()
        await ready(world)
        admin = await shell(world)
        shown = (await admin.ok("group", "show", "web")).stdout
        assert "0.00 USD per hour; without 3 VMs that have no price" in shown
        assert "≥ 0.00 USD/h" in (await admin.ok("status")).stdout
        assert "unknown per hour now, unknown (no price) afterwards" in (await admin.ok("group", "plan", "web")).stderr
