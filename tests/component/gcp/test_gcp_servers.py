"""Whole servers on Google Cloud by the stand-in's own books: no VM is lost, leaked or made twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from component.gcp import schedules
from component.gcp.gcp_servers import gcp_servers
from support.eventually import eventually
from support.gcp.compute import STOCK_OUT
from support.gcp.stand_in import LOST_REPLY


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    with schedules.impatient(schedules.MOST_SECONDS):
        yield


async def test_a_group_grows_and_shrinks_and_spot_vms_are_replaced(tmp_path: Path) -> None:
    with schedules.impatient(1.5):  # no operation takes long here
        async with gcp_servers(tmp_path) as world:
            await world.resize(4)
            await world.start("a")
            await world.settle(4)
            for name in sorted(world.compute.living())[:2]:
                world.interrupt(name)
            await eventually(lambda: sum(world.compute.made.values()) == 6)
            await world.settle(4)
            await world.resize(1)
            await world.settle(1)


async def test_a_type_without_capacity_is_left_for_the_next_one(tmp_path: Path) -> None:
    async with gcp_servers(tmp_path) as world:
        world.compute.rules.capacity["e2-small"] = 1
        await world.resize(3)
        await world.start("a")
        await world.settle(3)
        kinds = sorted(vm["machineType"].rpartition("/")[2] for vm in world.compute.living().values())
        assert kinds == ["e2-medium", "e2-medium", "e2-small"]


async def test_lost_replies_and_failed_operations_of_40_creates_make_40_vms(tmp_path: Path) -> None:
    async with gcp_servers(tmp_path) as world:
        world.stand_in.spoil("compute.instances.insert", *[LOST_REPLY if n % 3 == 0 else None for n in range(40)])
        world.compute.rules.operation_errors = [STOCK_OUT if n % 7 == 0 else "" for n in range(40)]
        await world.resize(40)
        await world.start("a")
        await world.settle(40)
        assert set(world.compute.made.values()) == {1}


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_schedules_of_faults(seed: int) -> None:
    """The command in `schedules.py` runs hundreds of them."""
    await schedules.run_seed(seed, 8)
