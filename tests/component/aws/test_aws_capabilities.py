"""The leader address, target groups, images, subnets and credentials of AWS against the strict stand-in."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from contracts.aws_world import AwsWorld, aws_world
from contracts.provider_worlds import request, scope
from nstance.aws import credentials
from nstance.aws.client import SSM
from nstance.aws.encoding import entries
from nstance.clouds.credentials import FreshCredentials
from nstance.clouds.errors import CredentialsError
from nstance.dev.aws.moto import AMI, ARM_AMI
from nstance.dev.aws.rules import Fault
from nstance.providers import errors
from nstance.providers.aws import leader_address
from nstance.providers.port import FixedAddress, ImageQuery, LeaderAddress
from support.eventually import eventually
from support.hand_clock import HandClock
from support.moto_server import moto_call


@pytest.fixture
async def world() -> AsyncIterator[AwsWorld]:
    async with aws_world() as made:
        yield made


def interface(world: AwsWorld, id: str) -> dict[str, object]:
    return dict(
        entries(moto_call(world.url, "DescribeNetworkInterfaces", {"NetworkInterfaceId.1": id}), "networkInterfaceSet")[
            0
        ]
    )


def holders(world: AwsWorld, ip: str) -> list[str]:
    """The instances whose interfaces have an address."""
    found = entries(moto_call(world.url, "DescribeNetworkInterfaces"), "networkInterfaceSet")
    return [
        str(each["attachment"]["instanceId"])
        for each in found
        if ip in [address["privateIpAddress"] for address in entries(each, "privateIpAddressesSet")]
    ]


def movable(world: AwsWorld) -> str:
    answer = moto_call(world.url, "CreateNetworkInterface", {"SubnetId": world.subnets[0]})
    return str(answer["networkInterface"]["networkInterfaceId"])


async def test_the_address_moves_in_one_call(world: AwsWorld) -> None:
    other = world.run_server()
    ours, theirs = world.open(scope()), world.open(scope(), server=other)
    assert isinstance(ours, LeaderAddress)
    assert isinstance(theirs, LeaderAddress)
    await ours.assign_leader_address()
    assert holders(world, world.leader_ip) == [world.server]
    await ours.assign_leader_address()
    before = len(world.stand_in.books.calls)
    await theirs.assign_leader_address()
    assert [action for action, _ in world.stand_in.books.calls[before:]] == ["AssignPrivateIpAddresses"]
    assert holders(world, world.leader_ip) == [other]
    await ours.release_leader_address()
    assert holders(world, world.leader_ip) == [other], "never the successor's"
    await theirs.release_leader_address()
    assert holders(world, world.leader_ip) == []


async def test_an_interface_moves_although_its_old_holder_hangs(world: AwsWorld) -> None:
    eni, other = movable(world), world.run_server()
    address = FixedAddress(world.leader_ip, "", eni)
    ours, theirs = world.open(scope(), address=address), world.open(scope(), server=other, address=address)
    assert isinstance(ours, LeaderAddress)
    assert isinstance(theirs, LeaderAddress)
    await ours.assign_leader_address()
    await ours.assign_leader_address()
    assert interface(world, eni)["attachment"]["instanceId"] == world.server  # type: ignore[index]
    world.stand_in.rules.detach_seconds = 1.2  # in use for a while after the detach
    await theirs.assign_leader_address()
    assert interface(world, eni)["attachment"]["instanceId"] == other  # type: ignore[index]
    await ours.release_leader_address()
    assert interface(world, eni)["attachment"]["instanceId"] == other  # type: ignore[index]
    await theirs.release_leader_address()
    assert interface(world, eni).get("attachment") in ("", None)


async def test_an_interface_that_never_detaches_is_an_error_in_time(
    world: AwsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_address, "LOOK_SECONDS", 0.01)
    eni = movable(world)
    params = {"NetworkInterfaceId": eni, "InstanceId": world.run_server(), "DeviceIndex": "1"}
    moto_call(world.url, "AttachNetworkInterface", params)
    world.stand_in.rules.detach_seconds = 3600.0
    ours = world.open(scope(), address=FixedAddress(world.leader_ip, "", eni))
    assert isinstance(ours, LeaderAddress)
    with pytest.raises(errors.UnavailableError, match="did not become free"):
        await ours.assign_leader_address()


async def test_a_lost_race_for_the_interface_looks_again(world: AwsWorld) -> None:
    eni = movable(world)
    ours = world.open(scope(), address=FixedAddress(world.leader_ip, "", eni))
    assert isinstance(ours, LeaderAddress)
    world.stand_in.rules.add("AttachNetworkInterface", Fault("InvalidNetworkInterface.InUse"), Fault("IncorrectState"))
    await ours.assign_leader_address()
    assert interface(world, eni)["attachment"]["instanceId"] == world.server  # type: ignore[index]


async def test_targets_drain_before_they_are_gone(world: AwsWorld) -> None:
    door = world.open(scope())
    balancer, vm = world.balancer(), await door.create(request())
    world.stand_in.rules.healthy_after = 3600.0
    world.stand_in.rules.deregistration_seconds = 0.3
    await door.register_target(balancer, vm.provider_id)
    assert await door.list_targets(balancer) == {vm.provider_id: True}, "also before it is healthy"
    await door.deregister_target(balancer, vm.provider_id)
    assert await door.list_targets(balancer) == {}
    assert await door.is_draining(balancer, vm.provider_id)
    await eventually(lambda: _is_drained(world, balancer, vm.provider_id))


async def _is_drained(world: AwsWorld, balancer: object, provider_id: str) -> bool:
    return not await world.open(scope()).is_draining(balancer, provider_id)  # type: ignore[arg-type]


async def test_a_vm_in_one_of_two_target_groups_is_a_partial_target(world: AwsWorld) -> None:
    door = world.open(scope())
    balancer, vm = world.balancer(), await door.create(request())
    world.stand_in.rules.add("RegisterTargets", Fault(), Fault("InternalFailure", status=500))
    with contextlib.suppress(errors.UnknownOutcomeError):
        await door.register_target(balancer, vm.provider_id)
    assert await door.list_targets(balancer) == {vm.provider_id: False}
    await door.register_target(balancer, vm.provider_id)
    assert await door.list_targets(balancer) == {vm.provider_id: True}


async def test_registering_what_does_not_run_is_refused(world: AwsWorld) -> None:
    door = world.open(scope())
    balancer, vm = world.balancer(), await door.create(request())
    await door.delete(vm.id, vm.provider_id)
    with pytest.raises(errors.PermanentError, match="InvalidTarget"):
        await door.register_target(balancer, vm.provider_id)
    await door.deregister_target(balancer, vm.provider_id)


async def test_images_by_filter_and_by_parameter(world: AwsWorld) -> None:
    door = world.open(scope())
    assert await door.find_image(ImageQuery(filters={"architecture": ["arm64"]})) == ARM_AMI
    assert await door.find_image(ImageQuery(filters={"name": ["debian-13-*"]}, owners=["801119661308"])) in (
        AMI,
        ARM_AMI,
    )
    with pytest.raises(errors.NotFoundError, match="no image with name=nothing"):
        await door.find_image(ImageQuery(filters={"name": ["nothing"]}))
    with pytest.raises(errors.NotFoundError, match="ParameterNotFound"):
        await door.find_image(ImageQuery(filters={}, parameter="/nothing/here"))
    await _put_parameter(world, "/images/debian", AMI)
    assert await door.find_image(ImageQuery(filters={}, parameter="/images/debian")) == AMI
    await _put_parameter(world, "/images/text", "hello")
    with pytest.raises(errors.PermanentError, match="expected the ID of an image"):
        await door.find_image(ImageQuery(filters={}, parameter="/images/text"))


async def _put_parameter(world: AwsWorld, name: str, value: str) -> None:
    await world.open(scope())._client.json(SSM, "PutParameter", {"Name": name, "Value": value, "Type": "String"})


async def test_free_addresses(world: AwsWorld) -> None:
    door = world.open(scope())
    before = await door.free_addresses(world.subnets[1])
    assert before is not None
    await door.create(request(subnet=world.subnets[1]))
    assert await door.free_addresses(world.subnets[1]) == before - 1


async def test_credentials_of_the_instance_are_used_and_refreshed_early(world: AwsWorld) -> None:
    """The metadata service gives credentials for an hour. They are fetched again before they end."""
    url = world.stand_in.metadata_url(world.server)
    door = world.open(scope(), environment={"AWS_EC2_METADATA_SERVICE_ENDPOINT": url})
    await door.create(request())
    first = await door._client._credentials.get()
    assert first.session_token.startswith("token-")
    assert await door._client._credentials.get() is first


async def test_a_failed_refresh_is_reported_while_the_old_ones_last() -> None:
    clock, reported = HandClock(), list[str]()
    fetched: list[credentials.Credentials | CredentialsError] = [
        credentials.Credentials("a", "b", "c", clock.wall() + 3600.0),
        CredentialsError("the metadata service does not answer"),
        CredentialsError("the metadata service does not answer"),
        credentials.Credentials("d", "e", "f", clock.wall() + 9000.0),
    ]

    async def fetch() -> credentials.Credentials:
        found = fetched.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    early = credentials.REFRESH_BEFORE_SECONDS
    source = FreshCredentials("keys", fetch, clock, refresh_before=early, on_failure=reported.append)
    assert (await source.get()).access_key == "a"
    await clock.advance(3600.0 - credentials.REFRESH_BEFORE_SECONDS + 1)
    assert (await source.get()).access_key == "a", "the old ones are still valid"
    await eventually(lambda: "the metadata service does not answer" in "".join(reported))
    await clock.advance(credentials.REFRESH_BEFORE_SECONDS)
    with pytest.raises(CredentialsError):
        await source.get()
    assert (await source.get()).access_key == "d"


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"AWS_ACCESS_KEY_ID": "a"}, "AWS_SECRET_ACCESS_KEY is not"),
        ({"AWS_PROFILE": "nobody", "HOME": "/nonexistent"}, "has no such profile"),
        ({"AWS_EC2_METADATA_DISABLED": "true"}, "turned off"),
        ({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}, "no answer from"),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/nonexistent", "AWS_ROLE_ARN": "r"}, "failed to read the token file"),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://example.com/x"}, "without TLS"),
    ],
)
async def test_missing_credentials_say_where_they_were_looked_for(
    world: AwsWorld, environment: dict[str, str], says: str
) -> None:
    door = world.open(scope(), environment=environment)
    with pytest.raises(errors.UnavailableError, match=says):
        await asyncio.wait_for(door.list(), 30)
