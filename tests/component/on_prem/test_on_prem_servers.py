"""Whole servers on Proxmox and QEMU: hosts that are full, and random schedules of faults."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from component.aws.schedules import impatient
from component.on_prem import schedules
from component.on_prem.on_prem_servers import on_prem_servers

PROVIDERS = ("qemu", "proxmox")


@pytest.fixture(autouse=True)
def short_waits() -> Iterator[None]:
    with impatient():
        yield


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_smaller_type_is_taken_when_the_hosts_are_full(provider: str, tmp_path: Path) -> None:
    async with on_prem_servers(tmp_path, provider) as world:
        large, small = world.place.template["instance_types"]
        world.place.fill()
        await world.resize(web=4)
        await world.start("a")
        await world.settle(4)
        assert world.types() == {large: 3, small: 1}


async def test_memory_that_is_free_again_is_used_at_once(tmp_path: Path) -> None:
    """Not after `capacity_retry`, which is three minutes. Another group gave it back."""
    async with on_prem_servers(tmp_path, "qemu") as world:
        await world.resize(web=3)
        await world.start("a")
        await world.settle(3)
        await world.resize(web=3, other=4)
        await world.leader.until(lambda: world.leader.shard.offers.count() == 2)
        await world.resize(web=0, other=4)
        await world.settle(4, seconds=60.0)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_random_schedules_of_faults(provider: str) -> None:
    """The command in `schedules.py` runs hundreds of them."""
    await schedules.run_seed(provider, 1, 4)
