"""One suite for all providers: memory, memory as an eventually consistent cloud, process, tmux, QEMU, Proxmox, AWS, Google."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from contracts import provider_worlds as worlds
from contracts.aws_world import aws_world
from contracts.gcp_world import gcp_world
from contracts.provider_worlds import World, one, request, scope, tick_until
from nstance.model.ids import InstanceId, ProviderId
from nstance.providers import errors, port
from nstance.providers.memory_behavior import Script
from nstance.providers.port import Status

HERE = scope()


@pytest.fixture(params=["memory", "eventual", "process", "tmux", "qemu", "proxmox", "aws", "gcp"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    opened = {
        "memory": worlds.memory_world,
        "eventual": lambda: worlds.memory_world(Script(lives=worlds.EVENTUAL)),
        "process": worlds.process_world,
        "tmux": worlds.tmux_world,
        "qemu": worlds.qemu_world,
        "proxmox": worlds.proxmox_world,
        "aws": aws_world,
        "gcp": gcp_world,
    }[request.param]()
    async with opened as made:
        yield made


async def shown(world: World, door: port.Instances, id: InstanceId, *wanted: Status) -> port.Vm:
    """Wait until both get and list show the VM in one of these states."""
    found: list[port.Vm] = []

    async def holds() -> bool:
        found[:] = [vm for vm in await door.list() if vm.id == id and vm.status in wanted]
        try:
            return bool(found) and (await door.get(id, None)).status in wanted
        except errors.NotFoundError:
            return False

    await tick_until(world, holds)
    return found[0]


async def gone(world: World, door: port.Instances, id: InstanceId) -> None:
    async def holds() -> bool:
        try:
            await door.get(id, None)
        except errors.NotFoundError:
            return id not in [vm.id for vm in await door.list()]
        return False

    await tick_until(world, holds)


async def deleted(world: World, door: port.Instances, id: InstanceId, provider_id: ProviderId | None) -> None:
    async def holds() -> bool:
        return await door.delete(id, provider_id) is Status.DELETED

    await tick_until(world, holds)
    assert world.count(id) == 0


async def test_a_vm_shows_its_tags(world: World) -> None:
    door = world.door(HERE)
    made = await door.create(request())
    assert made.status in (Status.PENDING, Status.RUNNING)
    vm = await shown(world, door, made.id, Status.RUNNING)
    assert (vm.cluster, vm.shard, vm.tenant, vm.group) == ("one", "a", "default", "workers")
    assert (vm.provider_id, vm.hostname, bool(vm.ip4)) == (made.provider_id, world.hostname(vm), world.knows_addresses)
    assert await door.get(made.id, made.provider_id) == vm


async def test_create_is_idempotent(world: World) -> None:
    """A new leader repeats the call."""
    asked = request()
    first = await world.door(HERE).create(asked)
    second = await world.door(HERE).create(asked)
    assert second.provider_id == first.provider_id
    assert await one(world, asked.id)


async def test_concurrent_creates_through_two_doors_make_one(world: World) -> None:
    asked, doors = request(), [world.door(HERE), world.door(HERE)]
    made = await asyncio.gather(*(doors[n % 2].create(asked) for n in range(6)))
    assert len({vm.provider_id for vm in made}) == 1
    assert await one(world, asked.id)


async def test_a_cancelled_create_is_repeated_safely(world: World) -> None:
    """Nobody knows how far it came."""
    asked, door = request(), world.door(HERE)
    lost = asyncio.create_task(door.create(asked))
    await asyncio.sleep(0)
    lost.cancel()
    await asyncio.gather(lost, return_exceptions=True)
    vm = await door.create(asked)
    await shown(world, door, asked.id, Status.RUNNING)
    assert (await door.create(asked)).provider_id == vm.provider_id
    assert await one(world, asked.id)


async def test_a_stopped_vm_is_not_started_again(world: World) -> None:
    """The VM that the ID already has is returned, whatever its state."""
    asked, door = request(), world.door(HERE)
    await door.create(asked)
    world.end_by_hand(asked.id)
    vm = await shown(world, door, asked.id, Status.STOPPED)
    again = await door.create(asked)
    assert (again.provider_id, again.status) == (vm.provider_id, Status.STOPPED)
    await deleted(world, door, asked.id, vm.provider_id)


async def test_delete_ends_in_gone(world: World) -> None:
    door = world.door(HERE)
    vm = await door.create(request())
    await shown(world, door, vm.id, Status.RUNNING)
    await deleted(world, door, vm.id, vm.provider_id)
    await gone(world, door, vm.id)


async def test_delete_twice_is_success(world: World) -> None:
    door = world.door(HERE)
    vm = await door.create(request())
    await deleted(world, door, vm.id, vm.provider_id)
    await gone(world, door, vm.id)
    assert await door.delete(vm.id, vm.provider_id) is Status.DELETED
    # A cloud that forgets what was deleted cannot tell it from what is not visible yet.
    assert await world.door(HERE).delete(vm.id, None) in (Status.DELETED, Status.DELETING)


async def test_concurrent_deletes_and_creates_leave_nothing(world: World) -> None:
    asked, doors = request(), [world.door(HERE), world.door(HERE)]
    await doors[0].create(asked)
    calls = [doors[n % 2].delete(asked.id, None) if n % 3 else doors[n % 2].create(asked) for n in range(6)]
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, Status | port.Vm | errors.PermanentError)
    await deleted(world, doors[0], asked.id, None)
    await gone(world, doors[1], asked.id)


async def test_a_deleted_id_is_never_made_again(world: World) -> None:
    asked, door = request(), world.door(HERE)
    vm = await door.create(asked)
    await door.delete(vm.id, None)
    with pytest.raises(errors.PermanentError, match="deleted"):
        await door.create(asked)
    await deleted(world, door, vm.id, None)
    with pytest.raises(errors.PermanentError, match="deleted"):
        await world.door(HERE).create(asked)


async def test_delete_of_an_unknown_id_is_success(world: World) -> None:
    """A provider that says that it is positively gone must not create it afterwards."""
    asked, door = request(), world.door(HERE)
    answer = await door.delete(asked.id, None)
    assert answer in (Status.DELETED, Status.DELETING)
    if answer is Status.DELETED:
        with pytest.raises(errors.PermanentError):
            await door.create(asked)


async def test_get_of_an_unknown_id_is_gone(world: World) -> None:
    with pytest.raises(errors.NotFoundError):
        await world.door(HERE).get(worlds.fresh_id(), None)


@pytest.mark.parametrize("other", [scope("two", "a"), scope("one", "b")], ids=["cluster", "shard"])
async def test_scopes_do_not_see_or_touch_each_other(world: World, other: port.Scope) -> None:
    ours, theirs = world.door(HERE), world.door(other)
    vm = await ours.create(request())
    foreign = await theirs.create(request())
    await shown(world, ours, vm.id, Status.RUNNING)
    await shown(world, theirs, foreign.id, Status.RUNNING)
    assert [each.id for each in await ours.list()] == [vm.id]
    assert [each.id for each in await theirs.list()] == [foreign.id]
    with pytest.raises(errors.PermanentError):
        await ours.delete(foreign.id, None)
    with pytest.raises(errors.PermanentError):
        await ours.get(foreign.id, None)
    with pytest.raises(errors.PermanentError):
        await ours.create(request(foreign.id))
    assert await one(world, foreign.id)
    assert (await theirs.get(foreign.id, None)).status is Status.RUNNING


async def test_a_failing_listing_is_an_error(world: World) -> None:
    """An error is never an empty list."""
    door = world.door(HERE)
    vm = await door.create(request())
    with world.broken_listing(), pytest.raises(errors.UnavailableError):
        await door.list()
    await shown(world, door, vm.id, Status.RUNNING)


async def test_a_damaged_vm_is_neither_gone_nor_an_orphan(world: World) -> None:
    """Without its tags nobody may collect it; and it is not read as absent."""
    door = world.door(HERE)
    vm, whole = await door.create(request()), await door.create(request())
    await shown(world, door, vm.id, Status.RUNNING)
    world.spoil(vm.id)
    seen = await door.get(vm.id, vm.provider_id)
    assert seen.status in (Status.RUNNING, Status.UNKNOWN)
    assert seen.cluster is None
    await shown(world, door, whole.id, Status.RUNNING)
    assert all(each.cluster is None for each in await door.list() if each.id == vm.id)
    assert await one(world, vm.id)
    # The record wins: a caller who knows it by its provider ID can still delete it.
    await deleted(world, door, vm.id, vm.provider_id)
    await gone(world, door, vm.id)


async def test_another_provider_id_deletes_nothing(world: World) -> None:
    door = world.door(HERE)
    vm = await door.create(request())
    with contextlib.suppress(errors.PermanentError):
        assert await door.delete(vm.id, ProviderId("elsewhere")) is not Status.DELETED
    assert await one(world, vm.id)
    with pytest.raises((errors.PermanentError, errors.NotFoundError)):
        await door.get(vm.id, ProviderId("elsewhere"))


async def test_vms_outlive_the_server(world: World) -> None:
    old = world.door(HERE)
    vm = await old.create(request())
    await old.close()
    new = world.door(HERE)
    assert (await shown(world, new, vm.id, Status.RUNNING)).provider_id == vm.provider_id
    await deleted(world, new, vm.id, vm.provider_id)


async def test_console(world: World) -> None:
    door = world.door(HERE)
    console = port.capabilities_of(door).console
    assert (console is not None) == world.has_console
    if console is None:
        return
    vm = await door.create(request())
    await shown(world, door, vm.id, Status.RUNNING)
    world.write_console(vm.id, "up\n")

    async def holds() -> bool:
        return "up" in await console.console_output(vm.id, vm.provider_id)

    await tick_until(world, holds)
    with pytest.raises(errors.NotFoundError):
        await console.console_output(worlds.fresh_id(), None)


async def test_capabilities_are_those_of_the_cloud_and_each_one_works(world: World) -> None:
    door = world.door(HERE)
    vm = await door.create(request())
    await shown(world, door, vm.id, Status.RUNNING)
    can = port.capabilities_of(door)
    found = (can.load_balancers, can.images, can.leader_address, can.subnet_capacity)
    assert tuple(each is not None for each in found) == world.capabilities
    if can.leader_address is not None:
        await can.leader_address.assign_leader_address()
        await can.leader_address.release_leader_address()
    if can.load_balancers is not None:
        balancer = world.balancer()
        await can.load_balancers.register_target(balancer, vm.provider_id)
        assert await can.load_balancers.list_targets(balancer) == {vm.provider_id: True}
        await can.load_balancers.deregister_target(balancer, vm.provider_id)
        await can.load_balancers.deregister_target(balancer, vm.provider_id)
        assert await can.load_balancers.list_targets(balancer) == {}
        assert await can.load_balancers.is_draining(balancer, vm.provider_id) is False
    if can.subnet_capacity is not None:
        assert await can.subnet_capacity.free_addresses("anything") is None
    if can.images is not None:
        with pytest.raises(errors.NotFoundError):
            await can.images.find_image(port.ImageQuery(filters={"name": ["x"]}))
