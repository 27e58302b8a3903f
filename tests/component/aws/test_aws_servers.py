"""Whole servers on AWS by moto's own books: no VM is lost, leaked or doubled, whatever happens to the calls."""

import asyncio
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from component.admin_shell import Shell, shell
from component.aws import schedules
from component.aws.aws_servers import TYPE, WEB, AwsServers, aws_servers
from nstance.dev.aws.rules import INTERNAL, LOST_REPLY, LOST_REQUEST, OUTAGE, QUOTA, THROTTLED, Fault, Offer, Rules
from nstance.server.waits import Waits
from nstance.tasks.backoff import Backoff
from support.eventually import eventually

REVOKED = Fault("AuthFailure", "AWS was not able to validate the provided access credentials", 401)
ENDED = Fault("RequestExpired", "Request has expired.")


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    with schedules.impatient():
        yield


def last_error(world: AwsServers) -> str:
    """What `status` shows of the group."""
    return world.leader.shard.trend(WEB).last_error


async def test_a_group_grows_and_shrinks(tmp_path: Path) -> None:
    async with aws_servers(tmp_path) as world:
        await world.resize(5)
        await world.start("a")
        await world.settle(5)
        await world.resize(2)
        await world.settle(2)


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_schedules_of_faults(seed: int) -> None:
    """The command in `schedules.py` runs hundreds of them."""
    await schedules.run_seed(seed, 20)


@pytest.mark.timeout(900)
async def test_lost_replies_of_300_creates_make_300_vms(tmp_path: Path) -> None:
    async with aws_servers(tmp_path, Rules(page_size=100)) as world:
        world.stand_in.rules.add("RunInstances", *[LOST_REPLY if n % 4 == 0 else Fault() for n in range(300)])
        world.stand_in.rules.visible_after = 3.0
        await world.resize(300)
        await world.start("a")
        await world.settle(300)
        await asyncio.gather(*(world.interrupt(id) for id in sorted(await world.stand_in.instances.existing())[:50]))
        await world.settle(300)


@pytest.mark.timeout(1800)
async def test_instances_survive_all_faults_at_once(tmp_path: Path) -> None:
    """Lost replies, NotFound after a create, throttling, exhausted offers, spot storms, a crash, and an interface of the
    leader address that hangs at its earlier holder."""
    r, size = random.Random(11), int(os.environ.get("NSTANCE_TEST_AWS_INSTANCES", "40"))
    async with aws_servers(tmp_path, Rules(page_size=100, visible_after=3.0, detach_seconds=5.0)) as world:
        rules, (first, second) = world.stand_in.rules, world.subnets
        rules.bucket_size, rules.bucket_refill = size / 2, 20.0
        rules.capacity = {
            Offer("spot", TYPE, first): size // 5,
            Offer("spot", TYPE, second): size // 8,
            Offer("spot", "m5.xlarge", first): 0,
            Offer("spot", "m5.xlarge", second): size // 8,
            Offer("on-demand", TYPE, second): 0,
        }
        world.template = {"instance_types": [TYPE, "m5.xlarge"], "markets": ["spot", "on-demand"]}
        for action, faults in FAULTS.items():
            rules.add(action, *spoiled(r, faults, size * 4 // 3))
        network = world.leader_interface()
        await world.resize(size, leader_network=network)
        leader = await world.start("a")
        await world.start("b", lead=False)
        await storm(world, r, size // 6, of=size // 2)
        await leader.crash()
        await world.start("a", lead=False)
        await storm(world, r, size // 4, of=size * 5 // 6)
        await world.settle(size)
        assert {offer.market for offer in world.stand_in.books.offers.values()} == {"spot", "on-demand"}
        assert world.holder(network["interface_id"]) == world.machine
        rules.add("TerminateInstances", *[r.choice(schedules.DELETE_FAULTS) for _ in range(size // 3)])
        await world.resize(size * 2 // 5)
        await world.settle(size * 2 // 5)


LOST = (LOST_REPLY, LOST_REPLY, LOST_REQUEST, INTERNAL)
FAULTS = {
    "RunInstances": (*LOST, schedules.CAPACITY, schedules.NO_ADDRESS),
    "TerminateInstances": LOST,
    "DescribeInstances": LOST,
    "DescribeNetworkInterfaces": LOST,
    "DetachNetworkInterface": LOST,
    "AttachNetworkInterface": LOST,
}
RARE = (THROTTLED, THROTTLED, THROTTLED, QUOTA)  # each slows down all calls, or stops all creates for a while


def spoiled(r: random.Random, faults: Sequence[Fault], count: int) -> list[Fault]:
    drawn = [r.choice(faults) if r.random() < 0.4 else Fault() for _ in range(count)]
    for fault in RARE:
        drawn[r.randrange(count)] = fault
    return drawn


async def storm(world: AwsServers, r: random.Random, count: int, *, of: int) -> None:
    """As many spot instances are reclaimed at once when so many instances exist."""
    await eventually(lambda: len(world.stand_in.books.offers) >= of, seconds=600.0)
    spot = sorted(id for id, offer in world.stand_in.books.offers.items() if offer.market == "spot")
    await asyncio.gather(*(world.interrupt(id) for id in r.sample(spot, min(count, len(spot)))))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [(OUTAGE, "Unavailable"), (REVOKED, "does not accept the credentials"), (ENDED, "does not accept the credentials")],
    ids=["outage", "killed credentials", "expired token"],
)
async def test_an_account_that_is_away_is_shown_deletes_nothing_and_heals(
    tmp_path: Path, fault: Fault, expected: str
) -> None:
    async with aws_servers(tmp_path) as world:
        await world.resize(3)
        server = await world.start("a")
        admin = await shell(world)
        await world.settle(3)
        before = await world.stand_in.instances.existing()
        world.stand_in.rules.outages["*"] = fault
        await world.resize(5)
        await server.until(lambda: expected in last_error(world))
        assert expected in await words(admin, "status")
        calls = len(world.stand_in.books.calls)
        await server.until(lambda: len(world.stand_in.books.calls) > calls + 5)  # it goes on asking
        assert await world.stand_in.instances.existing() == before
        world.stand_in.rules.heal()
        await world.settle(5)
        assert before.items() <= (await world.stand_in.instances.existing()).items()
        await server.until(lambda: last_error(world) == "")


OUTAGE_LISTINGS = 24  # as many are tried in ten minutes, with pauses of up to 30 s between them


async def test_a_region_that_is_away_for_ten_minutes_is_shown_and_heals(tmp_path: Path) -> None:
    """Nothing is to be done meanwhile, so that only the listings fail. Their pauses are a hundredth here."""
    async with aws_servers(tmp_path) as world:
        world.waits = Waits(listing_retry=Backoff(0.005, 0.3))
        await world.resize(3)
        server = await world.start("a")
        await world.settle(3)
        admin = await shell(world)
        before = await world.stand_in.instances.existing()
        records = dict(server.shard.instances)
        world.stand_in.rules.outages["*"] = OUTAGE
        asked = world.stand_in.books.count("DescribeInstances")
        await server.until(lambda: world.stand_in.books.count("DescribeInstances") > asked + OUTAGE_LISTINGS)
        status = await words(admin, "status")
        assert "the provider does not list the VMs, so none is found missing or unknown" in status
        assert "Unavailable: The server is overloaded" in status
        assert await world.stand_in.instances.existing() == before
        assert server.shard.instances == records
        assert world.stand_in.books.count("TerminateInstances") == 0
        world.stand_in.rules.heal()
        await eventually(lambda: says(admin, "the provider lists the VMs again"))
        assert await world.stand_in.instances.existing() == before


async def words(admin: Shell, *command: str) -> str:
    """What is shown, without the line breaks of a narrow terminal."""
    return " ".join((await admin(*command)).stdout.replace("│", " ").split())


async def says(admin: Shell, text: str) -> bool:
    return text in await words(admin, "status")


async def test_a_half_denied_policy_names_the_permission_and_heals(tmp_path: Path) -> None:
    """RunInstances is denied, everything else allowed."""
    async with aws_servers(tmp_path) as world:
        await world.resize(2)
        server = await world.start("a")
        admin = await shell(world)
        await world.settle(2)
        before = await world.stand_in.instances.existing()
        world.stand_in.rules.deny("RunInstances")
        await world.resize(4)
        await server.until(lambda: "AWS denied ec2:RunInstances" in last_error(world))
        assert "AWS denied ec2:RunInstances: allow it in the server's role" in await words(admin, "status")
        assert "calls to the provider were denied since its start" in await words(admin, "doctor")
        assert await world.stand_in.instances.existing() == before
        world.stand_in.rules.heal()
        await world.settle(4)


async def test_a_denied_terminate_keeps_its_record_and_heals(tmp_path: Path) -> None:
    async with aws_servers(tmp_path) as world:
        await world.resize(2)
        server = await world.start("a")
        await world.settle(2)
        world.stand_in.rules.deny("TerminateInstances")
        await world.resize(1)
        await server.until(lambda: world.stand_in.books.count("TerminateInstances") > 2)
        assert len(await world.stand_in.instances.existing()) == 2
        world.stand_in.rules.heal()
        await world.settle(1)


async def test_credentials_that_cannot_be_refreshed_are_an_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with aws_servers(tmp_path) as world:
        await world.resize(1)
        server = await world.start("a")
        await world.settle(1)
        client = server.configured.env.provider._client  # type: ignore[attr-defined]
        client.on_credentials_failure("failed to refresh AWS credentials: nobody answers")
        await eventually(lambda: "failed to refresh AWS credentials: nobody answers" in caplog.text)
        assert any(getattr(record, "reason", "") == "credentials" for record in caplog.records)
