"""EC2 instances against the strict stand-in: lost replies, lag, refusals, and what each error means."""

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest

from contracts.aws_world import AwsWorld, aws_world
from contracts.provider_worlds import request, scope
from nstance.dev.aws.rules import (
    EXPIRED,
    INTERNAL,
    LOST_REPLY,
    LOST_REQUEST,
    OUTAGE,
    QUOTA,
    THROTTLED,
    Fault,
    Offer,
    Rules,
)
from nstance.model.ids import InstanceId, Kind, instance_id, uuid7
from nstance.providers import errors
from nstance.providers.aws.instances import Ec2Instances
from nstance.providers.errors import CapacityScope
from nstance.providers.port import Status
from support.moto_server import moto_call


@pytest.fixture
async def world() -> AsyncIterator[AwsWorld]:
    async with aws_world(Rules(page_size=2)) as made:
        yield made


@pytest.fixture
def door(world: AwsWorld) -> Ec2Instances:
    return world.door(scope())


@pytest.mark.parametrize("fault", [LOST_REPLY, LOST_REQUEST, INTERNAL, OUTAGE])
async def test_a_create_without_a_reply_is_repeated_and_makes_one(
    world: AwsWorld, door: Ec2Instances, fault: Fault
) -> None:
    asked = request(subnet=world.subnets[0])
    world.stand_in.rules.add("RunInstances", fault)
    with pytest.raises(errors.UnknownOutcomeError):
        await door.create(asked)
    assert world.count(asked.id) == (1 if fault is LOST_REPLY else 0)
    made = await door.create(request(asked.id, subnet=world.subnets[0], may_exist=True))
    assert world.vms(asked.id) == [made.provider_id]


async def test_the_token_finds_an_instance_that_listings_do_not_show_yet(world: AwsWorld, door: Ec2Instances) -> None:
    asked = request()
    world.stand_in.rules.add("RunInstances", LOST_REPLY)
    world.stand_in.rules.visible_after = 3600.0
    with pytest.raises(errors.UnknownOutcomeError):
        await door.create(asked)
    with pytest.raises(errors.NotFoundError):
        await door.get(asked.id, None)
    made = await door.create(request(asked.id, may_exist=True))
    assert world.vms(asked.id) == [made.provider_id]
    with pytest.raises(errors.NotFoundError):
        await door.get(asked.id, made.provider_id)
    assert await door.delete(asked.id, None) is Status.DELETING, "what is not shown is not known to be gone"


async def test_a_fallback_to_another_offer_has_a_token_of_its_own(world: AwsWorld, door: Ec2Instances) -> None:
    asked = request(market="spot", subnet=world.subnets[0])
    world.stand_in.rules.capacity[Offer(market="spot")] = 0
    with pytest.raises(errors.NoCapacityError) as caught:
        await door.create(asked)
    assert (caught.value.scope, caught.value.subject) == (CapacityScope.OFFER, f"spot m5.large {world.subnets[0]}")
    vm = await door.create(request(asked.id, market="on-demand", subnet=world.subnets[0], may_exist=True))
    assert world.vms(asked.id) == [vm.provider_id]


async def test_another_request_for_the_same_offer_finds_the_first_vm(world: AwsWorld, door: Ec2Instances) -> None:
    """The template changed between two attempts: EC2 refuses the token, and the VM is found by its tag."""
    made = await door.create(request())
    again = await door.create(request(made.id, userdata=b"other"))
    assert again.provider_id == made.provider_id
    world.stand_in.rules.visible_after = 3600.0
    with pytest.raises(errors.UnknownOutcomeError):
        await door.create(request(made.id, userdata=b"other"))


async def test_an_id_whose_vm_ended_is_never_used_again(world: AwsWorld, door: Ec2Instances) -> None:
    made = await door.create(request())
    await door.delete(made.id, made.provider_id)
    world.stand_in.rules.terminated_shown = 0.0
    with pytest.raises(errors.PermanentError, match="deleted"):
        await door.create(request(made.id))


async def test_a_young_instance_that_is_not_found_may_still_come(world: AwsWorld, door: Ec2Instances) -> None:
    young = request(id=_young_id(world))
    made = await door.create(young)
    world.stand_in.rules.visible_after = 3600.0
    assert await door.delete(made.id, made.provider_id) is Status.DELETING
    assert world.count(made.id) == 1
    world.stand_in.rules.visible_after = 0.0
    assert await door.delete(made.id, made.provider_id) is Status.DELETING
    assert world.count(made.id) == 0


def _young_id(world: AwsWorld) -> InstanceId:
    return instance_id(Kind("knc"), uuid7(int(world.clock.wall() * 1000), 1))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("InsufficientInstanceCapacity", CapacityScope.OFFER),
        ("Unsupported", CapacityScope.OFFER),
        ("UnfulfillableCapacity", CapacityScope.OFFER),
        ("SpotMaxPriceTooLow", CapacityScope.OFFER),
        ("InsufficientFreeAddressesInSubnet", CapacityScope.SUBNET),
        ("MaxSpotInstanceCountExceeded", CapacityScope.TYPE_QUOTA),
        ("VcpuLimitExceeded", CapacityScope.TYPE_QUOTA),
        ("NetworkInterfaceLimitExceeded", CapacityScope.QUOTA),
    ],
)
async def test_no_capacity_says_of_what(
    world: AwsWorld, door: Ec2Instances, code: str, expected: CapacityScope
) -> None:
    world.stand_in.rules.add("RunInstances", Fault(code, status=500))
    asked = request(market="spot", subnet=world.subnets[1])
    with pytest.raises(errors.NoCapacityError, match=code) as caught:
        await door.create(asked)
    subjects = {
        CapacityScope.OFFER: f"spot m5.large {world.subnets[1]}",
        CapacityScope.SUBNET: world.subnets[1],
        CapacityScope.TYPE_QUOTA: "spot m5.large",
        CapacityScope.QUOTA: "m5.large",
    }
    assert (caught.value.scope, caught.value.subject) == (expected, subjects[expected])
    assert world.count(asked.id) == 0


async def test_throttling_is_no_lack_of_capacity(world: AwsWorld, door: Ec2Instances) -> None:
    world.stand_in.rules.add("RunInstances", THROTTLED, QUOTA)
    with pytest.raises(errors.ThrottledError) as caught:
        await door.create(request())
    assert caught.value.delay > 0
    with pytest.raises(errors.NoCapacityError):
        await door.create(request())


async def test_an_account_without_the_role_for_spot_says_how_to_create_it(world: AwsWorld, door: Ec2Instances) -> None:
    code = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
    world.stand_in.rules.add("RunInstances", Fault(code, "The provided credentials do not have permission", 403))
    with pytest.raises(errors.PermanentError, match="aws iam create-service-linked-role --aws-service-name spot"):
        await door.create(request(market="spot"))


@pytest.mark.parametrize(
    ("action", "permission"),
    [
        ("RunInstances", "ec2:RunInstances"),
        ("TerminateInstances", "ec2:TerminateInstances"),
        ("DescribeInstances", "ec2:DescribeInstances"),
        ("GetConsoleOutput", "ec2:GetConsoleOutput"),
    ],
)
async def test_a_denied_call_names_the_permission(
    world: AwsWorld, door: Ec2Instances, action: str, permission: str
) -> None:
    vm = await door.create(request())
    world.stand_in.rules.deny(action)
    calls = {
        "RunInstances": lambda: door.create(request()),
        "TerminateInstances": lambda: door.delete(vm.id, vm.provider_id),
        "DescribeInstances": door.list,
        "GetConsoleOutput": lambda: door.console_output(vm.id, vm.provider_id),
    }
    with pytest.raises(errors.PermanentError, match=r"docs/aws\.md#permissions") as caught:
        await calls[action]()  # type: ignore[no-untyped-call]
    assert caught.value.permission == permission
    assert world.count(vm.id) == 1


async def test_rejected_credentials_change_nothing_and_are_fetched_again(world: AwsWorld, door: Ec2Instances) -> None:
    world.stand_in.rules.add("RunInstances", EXPIRED, Fault("AuthFailure", status=401))
    asked = request()
    for _ in range(2):
        with pytest.raises(errors.OutOfReachError, match="credentials"):
            await door.create(asked)
    await door.create(asked)
    assert world.count(asked.id) == 1


async def test_a_listing_is_complete_over_all_pages_or_an_error(world: AwsWorld, door: Ec2Instances) -> None:
    made = {(await door.create(request())).id for _ in range(5)}
    assert {vm.id for vm in await door.list()} == made
    world.stand_in.rules.add("DescribeInstances", Fault(), Fault(), OUTAGE)  # the third page
    with pytest.raises(errors.UnavailableError):
        await door.list()


@pytest.mark.parametrize("name", ["instance", "volume", "network-interface"])
async def test_all_that_is_created_carries_the_tags(world: AwsWorld, door: Ec2Instances, name: str) -> None:
    users = {"ResourceType": name, "Tags": [{"Key": "team", "Value": "a"}, {"Key": "nstance:shard", "Value": "evil"}]}
    vm = await door.create(request(args={**request().args, "TagSpecifications": [users]}))
    (params,) = [params for action, params in world.stand_in.books.calls if action == "RunInstances"]
    specs = {params[f"TagSpecification.{n}.ResourceType"]: n for n in range(1, 4)}
    tags = {
        params[key]: params[key.removesuffix("Key") + "Value"]
        for key in params
        if key.startswith(f"TagSpecification.{specs[name]}.Tag.") and key.endswith(".Key")
    }
    assert (tags["team"], tags["nstance:shard"], tags["nstance:instance-id"]) == ("a", "a", vm.id)
    assert tags["nstance:managed"] == "true"


async def test_metadata_needs_a_token_unless_args_say_otherwise(world: AwsWorld, door: Ec2Instances) -> None:
    await door.create(request())
    await door.create(request(args={**request().args, "MetadataOptions": {"HttpPutResponseHopLimit": 2}}))
    sent = [params for action, params in world.stand_in.books.calls if action == "RunInstances"]
    assert [p["MetadataOptions.HttpTokens"] for p in sent] == ["required", "required"]
    assert [p["MetadataOptions.HttpPutResponseHopLimit"] for p in sent] == ["1", "2"]


async def test_the_subnet_of_an_offer_goes_to_the_first_network_interface(world: AwsWorld, door: Ec2Instances) -> None:
    interfaces = [{"DeviceIndex": 0, "AssociatePublicIpAddress": True}]
    await door.create(request(args={**request().args, "NetworkInterfaces": interfaces}, subnet=world.subnets[1]))
    (params,) = [params for action, params in world.stand_in.books.calls if action == "RunInstances"]
    assert params["NetworkInterface.1.SubnetId"] == world.subnets[1]
    assert "SubnetId" not in params


async def test_why_an_instance_ended(world: AwsWorld, door: Ec2Instances) -> None:
    reclaimed, deleted = await door.create(request(market="spot")), await door.create(request())
    await world.stand_in.instances.interrupt(reclaimed.provider_id)
    await asyncio.to_thread(moto_call, world.url, "TerminateInstances", {"InstanceId.1": deleted.provider_id})
    shown = {vm.id: (vm.status, vm.end_reason.partition(":")[0]) for vm in await door.list()}
    assert shown == {
        reclaimed.id: (Status.DELETED, "spot interruption"),
        deleted.id: (Status.DELETED, "shut down by a user"),
    }


async def test_termination_protection_says_how_to_lift_it(world: AwsWorld, door: Ec2Instances) -> None:
    vm = await door.create(request(args={**request().args, "DisableApiTermination": True}))
    with pytest.raises(errors.PermanentError, match="--no-disable-api-termination"):
        await door.delete(vm.id, vm.provider_id)
    assert world.count(vm.id) == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"args": {"ImageId": "ami-00000000000000000"}}, "args.ImageId: InvalidAMIID.NotFound"),
        ({"subnet": "subnet-00000000000000000"}, "subnet_pools: InvalidSubnetID.NotFound"),
        ({"instance_type": "m99.huge"}, "instance_type: InvalidInstanceType"),
        ({"userdata": b"x" * 17_000}, "userdata: expected at most 16384 bytes"),
        ({"profile": "nobody"}, "args.IamInstanceProfile: InvalidParameterValue"),
        ({"group": "sg-00000000000000000"}, "args.SecurityGroupIds: InvalidGroup"),
    ],
)
async def test_bad_input_is_refused_with_its_path(
    world: AwsWorld, door: Ec2Instances, changes: dict[str, object], says: str
) -> None:
    if profile := changes.pop("profile", None):
        changes["args"] = {**request().args, "IamInstanceProfile": {"Name": profile}}
    if group := changes.pop("group", None):
        changes["args"] = {**request().args, "SecurityGroupIds": [group]}
    asked = request(**changes)
    with pytest.raises(errors.PermanentError) as caught:
        await door.create(asked)
    assert says in str(caught.value)
    assert world.count(asked.id) == 0


async def test_userdata_arrives_as_it_was_written(world: AwsWorld, door: Ec2Instances) -> None:
    vm = await door.create(request(userdata=b"\x1f\x8b\x00binary"))
    assert base64.b64decode(world.stand_in.books.userdata[vm.provider_id]) == b"\x1f\x8b\x00binary"


async def test_an_instance_that_is_gone_counts_as_deleted_although_the_call_is_denied(
    world: AwsWorld, door: Ec2Instances
) -> None:
    """As by a policy that is limited to tagged instances: what no longer exists has no tags."""
    vm = await door.create(request())
    world.stand_in.rules.deny("TerminateInstances")
    with pytest.raises(errors.PermanentError, match="AWS denied ec2:TerminateInstances"):
        await door.delete(vm.id, vm.provider_id)
    await asyncio.to_thread(moto_call, world.url, "TerminateInstances", {"InstanceId.1": vm.provider_id})
    assert await door.delete(vm.id, vm.provider_id) is Status.DELETED
    world.stand_in.books.terminated[vm.provider_id] = world.clock.monotonic()
    world.stand_in.rules.terminated_shown = 0.0
    assert await door.delete(vm.id, vm.provider_id) is Status.DELETED
    world.stand_in.rules.add("DescribeInstances", OUTAGE)
    with pytest.raises(errors.UnavailableError):
        await door.delete(vm.id, vm.provider_id)


async def test_a_denied_delete_of_a_young_instance_that_is_not_shown_proves_nothing(
    world: AwsWorld, door: Ec2Instances
) -> None:
    vm = await door.create(request(id=_young_id(world)))
    world.stand_in.rules.deny("TerminateInstances")
    world.stand_in.rules.visible_after = 3600.0
    assert await door.delete(vm.id, vm.provider_id) is Status.DELETING


async def test_the_console_of_an_instance_without_nitro(world: AwsWorld, door: Ec2Instances) -> None:
    vm = await door.create(request())
    message = "This instance type does not support retrieving the latest console logs."
    world.stand_in.rules.add("GetConsoleOutput", Fault("UnsupportedOperation", message))
    world.stand_in.books.console[vm.provider_id] = "Welcome to Debian"
    assert await door.console_output(vm.id, vm.provider_id) == "Welcome to Debian"


async def test_a_launch_with_an_interface_that_exists(world: AwsWorld, door: Ec2Instances) -> None:
    made = moto_call(world.url, "CreateNetworkInterface", {"SubnetId": world.subnets[0]})
    interfaces = [{"DeviceIndex": 0, "NetworkInterfaceId": made["networkInterface"]["networkInterfaceId"]}]
    vm = await door.create(request(args={**request().args, "NetworkInterfaces": interfaces}))
    assert world.count(vm.id) == 1


async def test_an_image_of_somebody_else_says_nothing_about_the_credentials(
    world: AwsWorld, door: Ec2Instances
) -> None:
    foreign = Fault("AuthFailure", "Not authorized for images: [ami-0123456789abcdef9]")
    world.stand_in.rules.add("RunInstances", foreign)
    with pytest.raises(errors.PermanentError, match=r"args\.ImageId: AuthFailure: Not authorized for images"):
        await door.create(request())
