"""What the provider gcp can do besides instances: images, instance groups, subnets, the leader address, preflight."""

from collections.abc import AsyncIterator

import pytest

from contracts.gcp_world import ADDRESS, ARGS, IMAGE, LEADER_IP, TYPE, GcpWorld, gcp_world
from contracts.provider_worlds import request, scope
from nstance.providers import errors
from nstance.providers.gcp.provider import GcpProvider, GcpSettings
from nstance.providers.port import CloudPlan, ImageQuery, LoadBalancer, PlannedLaunch, capabilities_of
from support.gcp.cloud import SERVER
from support.gcp.compute import Rules
from support.gcp.resources import image
from support.gcp.stand_in import PROJECT, ZONE, Fault

HERE = scope()
UPDATE = "compute.instances.updateNetworkInterface"
ELSEWHERE = "europe-west1-c"


@pytest.fixture
async def world() -> AsyncIterator[GcpWorld]:
    async with gcp_world(Rules(page_size=500)) as made:
        yield made


def aliases(world: GcpWorld, name: str, zone: str = ZONE) -> list[str]:
    interface = world.compute.instances[zone, name]["networkInterfaces"][0]
    return [each["ipCidrRange"] for each in interface["aliasIpRanges"]]


def leads(world: GcpWorld, name: str, zone: str = ZONE) -> GcpProvider:
    """The provider of a server on another VM."""
    if (zone, name) not in world.compute.instances:
        world.compute.add_server(name, zone)
    world.stand_in.metadata |= {"instance/name": name, "instance/zone": f"projects/1/zones/{zone}"}
    return world.open(HERE, address=ADDRESS)


async def assign(provider: GcpProvider) -> None:
    address = capabilities_of(provider).leader_address
    assert address is not None
    await address.assign_leader_address()


async def test_the_leader_address_moves_from_its_old_holder_and_keeps_other_ranges(world: GcpWorld) -> None:
    other = {"ipCidrRange": "10.9.0.0/28", "subnetworkRangeName": "pods"}
    first = leads(world, SERVER)
    world.compute.instances[ZONE, SERVER]["networkInterfaces"][0]["aliasIpRanges"] = [other]
    await assign(first)
    await assign(first)
    assert aliases(world, SERVER) == ["10.9.0.0/28", f"{LEADER_IP}/32"]
    second = leads(world, "server-2", ELSEWHERE)
    await assign(second)
    assert aliases(world, SERVER) == ["10.9.0.0/28"]
    assert aliases(world, "server-2", ELSEWHERE) == [f"{LEADER_IP}/32"]
    assert capabilities_of(first).leader_address is not None
    await first.release_leader_address()  # type: ignore[attr-defined]  # not its own: nothing happens
    assert aliases(world, "server-2", ELSEWHERE) == [f"{LEADER_IP}/32"]
    await second.release_leader_address()  # type: ignore[attr-defined]
    assert aliases(world, "server-2", ELSEWHERE) == []


async def test_an_interface_that_changed_meanwhile_is_looked_at_again(world: GcpWorld) -> None:
    world.stand_in.spoil(UPDATE, Fault(412, "conditionNotMet", "Supplied fingerprint does not match"))
    await assign(leads(world, SERVER))
    assert aliases(world, SERVER) == [f"{LEADER_IP}/32"]
    assert world.stand_in.calls[UPDATE] == 2


async def test_a_denied_move_names_the_permission(world: GcpWorld) -> None:
    world.stand_in.denied = {UPDATE}
    with pytest.raises(errors.PermanentError) as caught:
        await assign(leads(world, SERVER))
    assert caught.value.permission == UPDATE


async def test_members_of_an_instance_group(world: GcpWorld) -> None:
    door = world.door(HERE)
    vm = await door.create(request())
    balancer = world.balancer()
    for _ in range(2):
        await door.register_target(balancer, vm.provider_id)
    assert world.compute.groups["web"] == {vm.id}
    await door.delete(vm.id, None)
    for operation in world.compute.operations.values():
        operation.due = 0.0
    await door.deregister_target(balancer, vm.provider_id)
    assert await door.list_targets(balancer) == {}
    with pytest.raises(errors.NotFoundError):
        await door.list_targets(LoadBalancer("lb", instance_group_name="none"))
    with pytest.raises(errors.NotFoundError):
        await door.register_target(balancer, vm.provider_id)


async def test_images_by_family_and_by_filters(world: GcpWorld) -> None:
    world.compute.images += [
        image("debian-12-v20260301", "debian-12", "2026-03-01T00:00:00.000-07:00"),
        image("debian-12-v20260401", "debian-12", "2026-04-01T00:00:00.000-07:00", deprecated={"state": "DEPRECATED"}),
        image("other-1", "other", "2026-05-01T00:00:00.000-07:00", architecture="ARM64"),
    ]
    door = world.door(HERE)
    newest = f"projects/{PROJECT}/global/images/debian-12-v20260301"
    assert await door.find_image(ImageQuery(filters={"family": ["debian-12"]})) == newest
    assert await door.find_image(ImageQuery(filters={"name": ["debian-12-*"]})) == newest
    assert await door.find_image(ImageQuery(filters={"name": ["debian-12-*"]}, order="asc")) == IMAGE
    both = ImageQuery(filters={"family": ["debian-*", "other"], "architecture": ["ARM64"]}, owners=[PROJECT])
    assert (await door.find_image(both)).endswith("/other-1")
    with pytest.raises(errors.NotFoundError, match="family=none"):
        await door.find_image(ImageQuery(filters={"family": ["none"]}))


async def test_free_addresses_of_a_subnet(world: GcpWorld) -> None:
    world.compute.subnets["subnet-2"] = 3
    assert await world.door(HERE).free_addresses("subnet-2") == 3


PLAN = CloudPlan(
    launches=[
        PlannedLaunch(
            template="web",
            instance_types=[TYPE],
            markets=["spot"],
            subnets=["subnet-1"],
            args={**ARGS, "ServiceAccount": "workers@proj-1.iam.gserviceaccount.com"},
        )
    ],
    subnet_pools={"main": ["subnet-1"]},
    zone=ZONE,
)


async def test_a_good_plan_has_no_faults(world: GcpWorld) -> None:
    assert await world.door(HERE).preflight(PLAN) == []


async def test_everything_that_would_fail_is_found_at_once_with_its_path(world: GcpWorld) -> None:
    world.stand_in.denied = {"compute.instances.delete", UPDATE}
    launch = PlannedLaunch(
        template="web",
        instance_types=["z9-giant", TYPE],
        markets=[],
        subnets=["subnet-9"],
        args={
            "SourceImage": "projects/x/global/images/none",
            "ServiceAccount": "nobody@proj-1.iam.gserviceaccount.com",
        },
    )
    plan = CloudPlan(launches=[launch], subnet_pools={"main": ["subnet-1", "subnet-9"]}, zone=ZONE)
    faults = {".".join(map(str, fault.path)): fault.text for fault in await world.door(HERE).preflight(plan)}
    assert "there is no subnet subnet-9" in faults["shard.subnet_pools.main.1"]
    assert "there is no machine type z9-giant" in faults["templates.web.instance_type"]
    assert "there is no image" in faults["templates.web.args.SourceImage"]
    assert "there is no service account" in faults["templates.web.args.ServiceAccount"]
    denied = [fault.text for fault in await world.door(HERE).preflight(plan) if fault.path == ("shard", "infra")]
    assert [text.split()[2].rstrip(":") for text in denied] == ["compute.instances.delete", UPDATE]
    assert len(faults) == 5
    assert world.stand_in.calls["compute.instances.insert"] == 0


async def test_a_wrong_zone_or_token_is_the_only_fault(world: GcpWorld) -> None:
    (fault,) = await world.open(HERE, settings=GcpSettings(zone="mars-north1-a")).preflight(PLAN)
    assert fault.path == ("shard", "infra", "zone")
    world.stand_in.tokens = set()
    (fault,) = await world.door(HERE).preflight(PLAN)
    assert fault.path == ("shard", "infra")
    assert "does not accept the token" in fault.text
