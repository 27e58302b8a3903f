"""Instances on Google Cloud: what the provider concludes from operations, conflicts and lost replies."""

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from contracts.gcp_world import ARGS, LIST, GcpWorld, gcp_world
from contracts.provider_worlds import fresh_id, request, scope
from nstance.providers import errors
from nstance.providers.errors import CapacityScope
from nstance.providers.gcp.provider import GcpSettings
from nstance.providers.port import CreateRequest, Status
from support.eventually import eventually
from support.gcp.compute import BROKEN, NO_ADDRESS, QUOTA, STOCK_OUT, STOCK_OUT_DETAILS
from support.gcp.stand_in import INTERNAL_AFTER, LOST_REPLY, LOST_REQUEST, OUTAGE, THROTTLED, ZONE, Fault

HERE = scope()
INSERT, WAIT, GET, DELETE = (
    f"compute.{name}" for name in ("instances.insert", "zoneOperations.wait", "instances.get", "instances.delete")
)


@pytest.fixture
async def world() -> AsyncIterator[GcpWorld]:
    async with gcp_world() as made:
        yield made


def offered(**changes: Any) -> CreateRequest:
    return request(market="spot", instance_type="e2-small", subnet="subnet-1", **changes)


def made_from(world: GcpWorld, asked: CreateRequest) -> dict[str, Any]:
    world.compute.settle()
    found: dict[str, Any] = world.compute.instances[ZONE, asked.id]
    return found


@pytest.mark.parametrize(
    ("code", "error_scope", "subject"),
    [
        (STOCK_OUT, CapacityScope.OFFER, "spot e2-small subnet-1"),
        (STOCK_OUT_DETAILS, CapacityScope.OFFER, "spot e2-small subnet-1"),
        (NO_ADDRESS, CapacityScope.SUBNET, "subnet-1"),
        (QUOTA, CapacityScope.TYPE_QUOTA, "spot e2-small"),
    ],
)
async def test_a_stock_out_inside_a_success_says_what_is_exhausted(
    world: GcpWorld, code: str, error_scope: CapacityScope, subject: str
) -> None:
    world.compute.rules.operation_errors = [code]
    asked = offered()
    with pytest.raises(errors.NoCapacityError, match=code) as caught:
        await world.door(HERE).create(asked)
    assert (caught.value.scope, caught.value.subject) == (error_scope, subject)
    assert world.count(asked.id) == 0


async def test_a_machine_type_that_the_zone_lacks_has_no_capacity(world: GcpWorld) -> None:
    with pytest.raises(errors.NoCapacityError) as caught:
        await world.door(HERE).create(replace(offered(), instance_type="z9-giant"))
    assert (caught.value.scope, caught.value.subject) == (CapacityScope.INSTANCE_TYPE, "z9-giant")


async def test_a_failed_attempt_is_not_answered_with_its_failure_for_ever(world: GcpWorld) -> None:
    """Google answers a repeated request ID with the first operation: also a new leader needs another ID."""
    world.compute.rules.operation_errors = [STOCK_OUT, BROKEN, STOCK_OUT]
    asked, door = offered(), world.door(HERE)
    with pytest.raises(errors.NoCapacityError):
        await door.create(asked)
    with pytest.raises(errors.UnavailableError):
        await door.create(asked)
    with pytest.raises(errors.NoCapacityError):
        await world.door(HERE).create(replace(asked, may_exist=True))
    vm = await world.door(HERE).create(asked)
    assert vm.status is Status.RUNNING
    assert world.compute.made[asked.id] == 1


async def test_an_instance_deleted_after_failed_attempts_is_never_made_again(world: GcpWorld) -> None:
    world.compute.rules.operation_errors = [STOCK_OUT]
    asked, door = offered(), world.door(HERE)
    with pytest.raises(errors.NoCapacityError):
        await door.create(asked)
    await door.create(asked)
    await door.delete(asked.id, None)
    await eventually(lambda: world.count(asked.id) == 0 and (ZONE, asked.id) not in world.compute.instances)
    for late in (door, world.door(HERE)):
        with pytest.raises(errors.PermanentError, match="deleted"):
            await late.create(asked)
    assert world.compute.made[asked.id] == 1


@pytest.mark.parametrize("fault", [OUTAGE, LOST_REPLY, THROTTLED, Fault(404, "notFound")], ids=repr)
async def test_polls_that_fail_never_end_a_create(world: GcpWorld, fault: Fault) -> None:
    world.stand_in.always[WAIT] = fault
    asked = request()
    vm = await world.door(HERE).create(asked)
    assert vm.id == asked.id
    assert world.count(asked.id) == 1


async def test_a_wait_that_ends_before_the_operation_goes_on(world: GcpWorld) -> None:
    world.compute.rules.wait_limit, world.compute.rules.insert = 0.02, 0.2
    vm = await world.door(HERE).create(request())
    assert vm.status is Status.RUNNING
    assert world.stand_in.calls[WAIT] > 1


@pytest.mark.parametrize("fault", [LOST_REPLY, INTERNAL_AFTER, LOST_REQUEST], ids=repr)
async def test_a_lost_reply_is_unknown_and_repeating_makes_one_vm(world: GcpWorld, fault: Fault) -> None:
    asked, door = request(), world.door(HERE)
    await door.create(request())  # the connection is open
    world.stand_in.spoil(INSERT, fault)
    with pytest.raises(errors.UnknownOutcomeError):
        await door.create(asked)
    await door.create(replace(asked, may_exist=True))
    await world.door(HERE).create(asked)
    assert world.compute.made[asked.id] == 1


@pytest.mark.parametrize("fault", [OUTAGE, Fault(403, "forbidden")], ids=repr)
async def test_a_lookup_that_fails_after_an_insert_leaves_it_unknown(world: GcpWorld, fault: Fault) -> None:
    """A right that was taken away says nothing about the VM, either."""
    world.stand_in.spoil(GET, fault)
    asked = request()
    with pytest.raises(errors.UnknownOutcomeError):
        await world.door(HERE).create(asked)
    assert world.count(asked.id) == 1


async def test_a_name_of_somebody_else_is_refused(world: GcpWorld) -> None:
    asked = request()
    world.compute.add_server(asked.id)
    world.compute.instances[ZONE, asked.id]["labels"] = {"nstance-cluster-id": "other", "nstance-shard": "a"}
    with pytest.raises(errors.PermanentError, match="belongs to shard a of cluster other"):
        await world.door(HERE).create(asked)


async def test_what_google_refuses_names_its_path_or_permission(world: GcpWorld) -> None:
    door = world.door(HERE)
    with pytest.raises(errors.PermanentError) as caught:
        await door.create(request(args={"SourceImage": "projects/x/global/images/none"}))
    assert caught.value.parameter == "args.SourceImage"
    with pytest.raises(errors.PermanentError) as caught:
        await door.create(request(subnet="subnet-9"))
    assert caught.value.parameter == "subnet_pools"
    missing = "The resource 'projects/proj-1/regions/europe-west1/subnetworks/subnet-9' was not found"
    world.stand_in.spoil(INSERT, Fault(404, "notFound", missing))
    with pytest.raises(errors.PermanentError, match="subnet-9") as caught:
        await door.create(request())
    assert caught.value.parameter == "subnet_pools"
    lent = "The user does not have access to service account 'w@p.iam.gserviceaccount.com'."
    world.stand_in.spoil(INSERT, Fault(400, "SERVICE_ACCOUNT_ACCESS_DENIED", lent))
    with pytest.raises(errors.PermanentError, match=r"docs/gcp\.md#permissions") as caught:
        await door.create(request())
    assert caught.value.permission == "iam.serviceAccounts.actAs"
    world.stand_in.denied = {"compute.instances.create"}
    with pytest.raises(errors.PermanentError, match=r"docs/gcp\.md#permissions") as caught:
        await door.create(request())
    assert caught.value.permission == "compute.instances.create"
    world.stand_in.spoil(INSERT, THROTTLED)
    with pytest.raises(errors.ThrottledError):
        await door.create(request())
    assert not world.compute.living()


async def test_a_token_that_ends_is_fetched_again(world: GcpWorld) -> None:
    door = world.door(HERE)
    world.stand_in.tokens = set()
    with pytest.raises(errors.UnavailableError, match="token"):
        await door.create(request())
    world.stand_in.tokens = {"token-of-the-stand-in"}
    await door.create(request())


async def test_a_delete_that_failed_is_asked_for_again(world: GcpWorld) -> None:
    """A VM whose insert is not done cannot be deleted, and Google says so in the operation."""
    asked, door = request(), world.door(HERE)
    world.compute.rules.insert = 3600.0
    world.stand_in.always[WAIT] = OUTAGE
    assert (await door.create(asked)).status is Status.PENDING
    assert await door.delete(asked.id, None) is Status.DELETING
    assert world.count(asked.id) == 1
    for operation in world.compute.operations.values():
        operation.due = 0.0
    assert await door.delete(asked.id, None) is Status.DELETING
    assert world.count(asked.id) == 0


async def test_deletion_protection_is_refused_with_the_way_to_lift_it(world: GcpWorld) -> None:
    asked, door = request(args={**ARGS, "DeletionProtection": True}), world.door(HERE)
    await door.create(asked)
    with pytest.raises(errors.PermanentError, match=f"instances update {asked.id} .*--no-deletion-protection"):
        await door.delete(asked.id, None)
    assert world.count(asked.id) == 1


async def test_deleting_what_is_young_and_absent_is_not_certain(world: GcpWorld) -> None:
    """Its create may still be on its way."""
    door = world.door(HERE)
    assert await door.delete(fresh_id(), None) is Status.DELETING
    world.stand_in.spoil(DELETE, INTERNAL_AFTER)
    asked = request()
    await door.create(asked)
    with pytest.raises(errors.UnknownOutcomeError):
        await door.delete(asked.id, None)

    async def is_deleted() -> bool:
        return await door.delete(asked.id, None) is Status.DELETED

    await eventually(is_deleted)


async def test_a_partial_listing_is_an_error(world: GcpWorld) -> None:
    door = world.door(HERE)
    for _ in range(5):
        await door.create(request())
    assert len(await door.list()) == 5
    world.stand_in.spoil(LIST, None, OUTAGE)  # the second page
    with pytest.raises(errors.UnavailableError):
        await door.list()
    world.compute.rules.warning = "UNREACHABLE"
    with pytest.raises(errors.UnavailableError, match="partial"):
        await door.list()


async def test_a_preempted_vm_says_so(world: GcpWorld) -> None:
    door = world.door(HERE)
    spot, other = offered(args={**ARGS, "Scheduling": {"InstanceTerminationAction": "STOP"}}), request()
    await door.create(spot)
    await door.create(other)
    world.compute.preempt(spot.id)
    found = await door.get(spot.id, None)
    assert found.status in (Status.STOPPING, Status.STOPPED)
    assert found.end_reason.startswith("spot interruption")
    world.compute.stop(other.id)
    assert {vm.id: vm.end_reason.partition(":")[0] for vm in await door.list()} == {
        spot.id: "spot interruption",
        other.id: "",
    }


async def test_labels_of_users_are_merged_and_ours_win(world: GcpWorld) -> None:
    asked = request(args={**ARGS, "Labels": {"team": "blue", "nstance-shard": "theirs"}})
    await world.door(HERE).create(asked)
    made = made_from(world, asked)
    for labels in (made["labels"], made["disks"][0]["initializeParams"]["labels"]):
        assert labels["nstance-shard"] == "a"
        assert labels["nstance-instance-id"] == asked.id
    assert made["labels"]["team"] == "blue"


async def test_short_arguments_and_userdata_become_fields_of_the_instance(world: GcpWorld) -> None:
    args = {
        **ARGS,
        "DiskSizeGb": 20,
        "DiskType": "pd-ssd",
        "ServiceAccount": "workers@proj-1.iam.gserviceaccount.com",
        "NetworkTags": ["web"],
        "ProvisioningModel": "SPOT",
        "Metadata": {"serial-port-enable": "TRUE"},
        "ShieldedInstanceConfig": {"EnableSecureBoot": True},
    }
    asked = request(args=args, userdata="#cloud-config\n# ümläut".encode(), subnet="subnet-2")
    zipped = request(args=args, userdata=b"\x1f\x8b\xff", market="on-demand")
    for each in (asked, zipped):
        await world.door(HERE).create(each)
    made = made_from(world, asked)
    items = {item["key"]: item["value"] for item in made["metadata"]["items"]}
    assert items == {"serial-port-enable": "TRUE", "user-data": "#cloud-config\n# ümläut"}
    assert made["disks"][0]["initializeParams"]["diskSizeGb"] == "20"
    assert made["disks"][0]["autoDelete"]
    assert made["tags"] == {"items": ["web"]}
    assert made["scheduling"]["provisioningModel"] == "SPOT"
    assert made["networkInterfaces"][0]["subnetwork"].endswith("/subnet-2")
    assert made["shieldedInstanceConfig"] == {"enableSecureBoot": True}
    other = made_from(world, zipped)
    items = {item["key"]: item["value"] for item in other["metadata"]["items"]}
    assert base64.b64decode(items["user-data"]) == b"\x1f\x8b\xff"
    assert items["user-data-encoding"] == "base64"
    assert other["scheduling"]["provisioningModel"] == "STANDARD"


async def test_userdata_that_google_does_not_take_is_refused_before_the_call(world: GcpWorld) -> None:
    with pytest.raises(errors.PermanentError, match="userdata: expected at most"):
        await world.door(HERE).create(request(userdata=b"x" * 200_000))
    assert world.stand_in.calls[INSERT] == 0


async def test_the_project_may_be_configured(world: GcpWorld) -> None:
    door = world.open(HERE, settings=GcpSettings(zone=ZONE, project="another"))
    with pytest.raises(errors.PermanentError, match="projects/another"):
        await door.create(request())
