"""One cluster, one bucket, shards on different providers: the operator spreads one pool over all of them."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from component import hybrid_world
from component.hybrid_world import HybridShard
from component.operator_world import Cluster, operating
from nstance.config import load
from nstance.kube import kinds
from nstance.kube.port import Object
from nstance.model.ids import ShardId
from support import docs_pages


async def counts(cluster: Cluster) -> dict[str, int]:
    return {name: len(cluster.running(name, "web")) for name in cluster.shards}


@pytest.mark.timeout(600)
async def test_a_pool_is_spread_over_providers_and_each_dark_one_costs_only_its_shard(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        places = await hybrid_world.open_places(stack)
        if len(places) < 2:
            pytest.skip("needs two providers: install QEMU, or run 'make test-hybrid', which installs stand-ins")
        names = list(places)

        def make_world(
            dir: Path, settings: hybrid_world.Json, *, shard: ShardId, beside: HybridShard | None
        ) -> HybridShard:
            return HybridShard(dir, settings, shard=shard, beside=beside, place=places[shard])

        groups = {name: {"web": 1} for name in names}
        cluster = await stack.enter_async_context(
            operating(tmp_path, "memory", groups, drain_timeout="0", make_world=make_world)
        )
        shards = {name: world for name, world in cluster.shards.items() if isinstance(world, HybridShard)}
        pool = await cluster.until(lambda: cluster.get(kinds.NSTANCE_MACHINE_POOL, "nstance-web"))
        assert sorted(pool["spec"]["shards"]) == sorted(names), "one pool"
        stores = {id(world.store) for world in shards.values()}
        assert len(stores) == 1, "one bucket"

        await cluster.scale("web", 2 * len(names))
        for name in names:
            await cluster.until(lambda name=name: len(cluster.running(name, "web")) == 2)
            await cluster.until(lambda name=name: shards[name].count() == 2)

        async def has_all_ids() -> Object | None:
            item = await cluster.get(kinds.NSTANCE_MACHINE_POOL, "nstance-web")
            return item if item and len(item["spec"].get("providerIDList", ())) == 2 * len(names) else None

        await cluster.until(has_all_ids)

        for size, dark in enumerate(names, start=3):
            other = names[names.index(dark) - 1]
            shards[dark].is_lit.clear()
            before = cluster.running(dark, "web")
            victim = cluster.running(other, "web")[0]
            shards[other].kill(victim)
            await cluster.scale("web", size * len(names))
            for name in names:
                if name != dark:
                    await cluster.until(lambda name=name, size=size: len(cluster.running(name, "web")) == size)
            assert victim not in cluster.running(other, "web"), "it was replaced"
            assert cluster.running(dark, "web") == before, "its instances serve as before"
            shards[dark].is_lit.set()
            await cluster.until(lambda dark=dark, size=size: len(cluster.running(dark, "web")) == size)
            assert set(before) <= set(cluster.running(dark, "web")), "nothing was replaced"
            for name in names:
                await cluster.until(lambda name=name, size=size: shards[name].count() == size)


def test_the_examples_on_the_page_are_valid_and_make_one_pool() -> None:
    examples = [load.load(text) for text in docs_pages.blocks("hybrid.md", "jsonc")]
    assert {each.shard.infra.provider for each in examples} == {"aws", "gcp", "proxmox", "qemu"}
    assert len({(each.cluster.id, *each.groups, *each.templates) for each in examples}) == 1
