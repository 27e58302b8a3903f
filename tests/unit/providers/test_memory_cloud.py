"""The cloud in memory misbehaves exactly as configured, and its state stays consistent."""

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.provider_worlds import fresh_id, request, scope
from nstance.model.ids import ProviderId
from nstance.providers import errors, port
from nstance.providers.memory import MemoryProvider
from nstance.providers.memory_behavior import Call, Life, Outcome, Script
from nstance.providers.memory_cloud import Image, MemoryCloud
from nstance.providers.port import LoadBalancer, Status
from nstance.sim.rng import SeededRng
from support.hand_clock import HandClock
from unit.providers.fickle_cloud import Fickle, Odds


class World:
    def __init__(
        self, lives: Life | None = None, *, subnets: dict[str, int] | None = None, images: Sequence[Image] = ()
    ):
        self.clock = HandClock()
        self.script = Script(lives=lives or Life())
        self.booted: list[str] = []
        self.ended: list[str] = []
        self.cloud = MemoryCloud(
            self.clock,
            behavior=self.script,
            subnets=subnets,
            on_boot=lambda asked, vm: self.booted.append(asked.id),
            on_end=lambda asked, vm: self.ended.append(vm.id),
        )
        self.cloud.images.extend(images)
        self.door = self.server("s1")

    def server(self, name: str) -> MemoryProvider:
        return MemoryProvider(scope(), self.clock, cloud=self.cloud, server=name)


@pytest.fixture(autouse=True)
async def _nothing_fails_in_the_background() -> AsyncIterator[None]:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    yield
    gc.collect()
    assert failures == []


UNKNOWN = errors.UnknownOutcomeError("the answer was lost")


@pytest.mark.parametrize(
    ("outcome", "error", "made"),
    [
        pytest.param(
            Outcome(applied=False, error=errors.UnavailableError("away")), errors.UnavailableError, False, id="before"
        ),
        pytest.param(
            Outcome(applied=False, error=errors.ThrottledError("slow")), errors.ThrottledError, False, id="throttled"
        ),
        pytest.param(
            Outcome(applied=False, error=UNKNOWN), errors.UnknownOutcomeError, False, id="unknown, not applied"
        ),
        pytest.param(Outcome(error=UNKNOWN), errors.UnknownOutcomeError, True, id="lost reply"),
    ],
)
async def test_a_create_that_fails(outcome: Outcome, error: type[Exception], made: bool) -> None:
    world = World()
    world.script.then(Call.CREATE, outcome)
    asked = request()
    with pytest.raises(error):
        await world.door.create(asked)
    assert [vm.id for vm in world.cloud.vms()] == [asked.id] * made
    await world.door.create(asked)
    assert len(world.cloud.vms()) == 1
    assert world.booted == [asked.id]


async def test_a_vm_appears_late() -> None:
    """Timed out, applied after 100 s; the repeat and the late one are one VM."""
    world = World()
    world.script.then(Call.CREATE, Outcome(late=100.0, error=UNKNOWN))
    asked = request()
    with pytest.raises(errors.UnknownOutcomeError):
        await world.door.create(asked)
    await world.clock.advance(99.0)
    assert world.cloud.vms() == []
    await world.clock.advance(1.0)
    assert [vm.id for vm in world.cloud.vms()] == [asked.id]
    await world.door.create(asked)
    assert world.booted == [asked.id]


async def test_a_late_create_after_a_delete_shows_up() -> None:
    """A delete of what is not there yet is not positive; the VM turns up and can be deleted."""
    world = World()
    world.script.then(Call.CREATE, Outcome(late=30.0, error=UNKNOWN))
    asked = request()
    with pytest.raises(errors.UnknownOutcomeError):
        await world.door.create(asked)
    assert await world.door.delete(asked.id, None) is Status.DELETING
    await world.clock.advance(30.0)
    assert (await world.door.get(asked.id, None)).status is Status.RUNNING
    assert await world.door.delete(asked.id, None) is Status.DELETED


async def test_a_cancelled_call_is_applied_all_the_same() -> None:
    world = World()
    world.script.then(Call.CREATE, Outcome(before=5.0, after=5.0))
    asked = request()
    call = asyncio.create_task(world.door.create(asked))
    await world.clock.advance(1.0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert world.cloud.vms() == []
    await world.clock.advance(4.0)
    assert [vm.id for vm in world.cloud.vms()] == [asked.id]


async def test_delays_before_and_after() -> None:
    world = World()
    world.script.then(Call.CREATE, Outcome(before=2.0, after=3.0))
    call = asyncio.create_task(world.door.create(request()))
    await world.clock.advance(2.0)
    assert len(world.cloud.vms()) == 1
    assert not call.done()
    await world.clock.advance(3.0)
    assert call.done()
    await call


async def test_boot_takes_its_time_and_the_hook_comes_once() -> None:
    world = World(Life(boot=10.0))
    vm = await world.door.create(request())
    assert vm.status is Status.PENDING
    await world.clock.advance(9.0)
    assert (await world.door.get(vm.id, None)).status is Status.PENDING
    assert world.booted == []
    await world.clock.advance(1.0)
    assert (await world.door.get(vm.id, None)).status is Status.RUNNING
    assert world.booted == [vm.id]


async def test_a_vm_deleted_while_it_boots_never_boots() -> None:
    world = World(Life(boot=10.0))
    vm = await world.door.create(request())
    await world.door.delete(vm.id, None)
    await world.clock.advance(20.0)
    assert world.booted == []


async def test_a_deleted_vm_runs_on_for_a_while() -> None:
    """DELETED only once it is positively dead; then shown as deleted, then gone."""
    world = World(Life(dying=30.0, linger=60.0))
    vm = await world.door.create(request())
    assert await world.door.delete(vm.id, None) is Status.DELETING
    await world.clock.advance(29.0)
    assert await world.door.delete(vm.id, None) is Status.DELETING
    assert world.ended == []
    await world.clock.advance(1.0)
    assert world.ended == [vm.id]
    assert (await world.door.get(vm.id, None)).status is Status.DELETED
    assert await world.door.delete(vm.id, None) is Status.DELETED
    await world.clock.advance(60.0)
    with pytest.raises(errors.NotFoundError):
        await world.door.get(vm.id, None)
    assert await world.door.delete(vm.id, None) is Status.DELETED


async def test_a_delete_that_says_yes_and_does_nothing() -> None:
    world = World()
    vm = await world.door.create(request())
    world.script.then(Call.DELETE, Outcome(applied=False))
    assert await world.door.delete(vm.id, None) is Status.DELETING
    assert (await world.door.get(vm.id, None)).status is Status.RUNNING


async def test_answers_lag_behind() -> None:
    """New and deleted VMs show late, and lists lag more than single answers."""
    world = World(Life(get_lag=2.0, list_lag=5.0))
    vm = await world.door.create(request())
    with pytest.raises(errors.NotFoundError):
        await world.door.get(vm.id, None)
    await world.clock.advance(2.0)
    assert (await world.door.get(vm.id, None)).status is Status.RUNNING
    assert await world.door.list() == []
    await world.clock.advance(3.0)
    assert [each.id for each in await world.door.list()] == [vm.id]
    assert await world.door.delete(vm.id, None) is Status.DELETED
    assert (await world.door.get(vm.id, None)).status is Status.RUNNING, "a lie, as clouds tell it"
    await world.clock.advance(2.0)
    with pytest.raises(errors.NotFoundError):
        await world.door.get(vm.id, None)
    assert len(await world.door.list()) == 1
    await world.clock.advance(3.0)
    assert await world.door.list() == []


async def test_a_listing_fails_or_is_quietly_short() -> None:
    world = World()
    for _ in range(5):
        await world.door.create(request())
    world.script.then(
        Call.LIST, Outcome(applied=False, error=errors.UnavailableError("page 2")), Outcome(first=2), Outcome(first=0)
    )
    with pytest.raises(errors.UnavailableError):
        await world.door.list()
    assert [len(await world.door.list()) for _ in range(3)] == [2, 0, 5]


async def test_subnets_fill_up() -> None:
    world = World(subnets={"small": 1})
    vm = await world.door.create(request(subnet="small"))
    assert await world.door.free_addresses("small") == 0
    refused = request(subnet="small")
    with pytest.raises(errors.NoCapacityError):
        await world.door.create(refused)
    await world.door.create(request(refused.id, subnet="large"))
    assert await world.door.free_addresses("large") is None
    await world.door.delete(vm.id, None)
    assert await world.door.free_addresses("small") == 1


async def test_destroyed_by_hand() -> None:
    world = World(Life(dying=30.0))
    asked = request()
    vm = await world.door.create(asked)
    world.cloud.destroy(vm.id)
    assert world.ended == [vm.id]
    with pytest.raises(errors.NotFoundError):
        await world.door.get(vm.id, None)
    with pytest.raises(errors.PermanentError):
        await world.door.create(asked)
    await world.clock.advance(60.0)
    assert world.ended == [vm.id]


async def test_destroyed_by_hand_while_it_dies() -> None:
    world = World(Life(dying=30.0))
    vm = await world.door.create(request())
    await world.door.delete(vm.id, None)
    world.cloud.destroy(vm.id)
    assert world.ended == [vm.id]
    await world.clock.advance(60.0)
    assert world.ended == [vm.id]


async def test_stripped_tags_hide_a_vm_from_listings_only() -> None:
    world = World()
    vm = await world.door.create(request())
    world.cloud.strip_tags(vm.id)
    assert await world.door.list() == []
    assert (await world.door.get(vm.id, None)).shard is None


async def test_two_vms_of_one_id() -> None:
    world = World()
    asked = request()
    first = await world.door.create(asked)
    second = world.cloud.duplicate_vm(asked.id)
    assert len(await world.door.list()) == 2
    assert await world.door.delete(asked.id, second) is Status.DELETED
    assert [vm.provider_id for vm in await world.door.list()] == [first.provider_id]
    assert (await world.door.create(asked)).provider_id == first.provider_id


async def test_get_shows_the_one_that_is_meant() -> None:
    world = World()
    first = await world.door.create(request())
    second = world.cloud.duplicate_vm(first.id)
    assert (await world.door.get(first.id, second)).provider_id == second
    assert (await world.door.get(first.id, first.provider_id)).provider_id == first.provider_id


async def test_load_balancers() -> None:
    """Lost calls are repeated without harm."""
    world = World()
    vm = await world.door.create(request())
    world.script.then(Call.LOAD_BALANCER_REGISTER, Outcome(applied=False))
    await world.door.register_target(LoadBalancer("lb"), vm.provider_id)
    assert await world.door.list_targets(LoadBalancer("lb")) == {}
    for _ in range(2):
        await world.door.register_target(LoadBalancer("lb"), vm.provider_id)
    assert await world.door.list_targets(LoadBalancer("lb")) == {vm.provider_id: True}
    with pytest.raises(errors.NotFoundError):
        await world.door.register_target(LoadBalancer("lb"), ProviderId("memory-999999"))
    await world.door.delete(vm.id, None)
    assert await world.door.list_targets(LoadBalancer("lb")) == {}
    await world.door.deregister_target(LoadBalancer("lb"), vm.provider_id)


async def test_the_leader_network_follows_the_last_leader() -> None:
    world = World()
    old, new = world.server("old"), world.server("new")
    await old.assign_leader_address()
    await new.assign_leader_address()
    await old.release_leader_address()
    assert world.cloud.leader_networks == {scope(): "new"}
    await new.release_leader_address()
    assert world.cloud.leader_networks == {}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (port.ImageQuery(filters={"name": ["debian-*"]}), "i2"),
        (port.ImageQuery(filters={"name": ["debian-*"]}, order="asc"), "i1"),
        (port.ImageQuery(filters={"name": ["debian-*"]}, owners=["me"]), "i1"),
        (port.ImageQuery(filters={}, sort="name"), "i3"),
    ],
)
async def test_images(query: port.ImageQuery, found: str) -> None:
    images = [
        Image(id="i1", created=1.0, owner="me", attributes={"name": "debian-12"}),
        Image(id="i2", created=3.0, attributes={"name": "debian-11"}),
        Image(id="i3", created=2.0, attributes={"name": "ubuntu"}),
    ]
    world = World(images=images)
    assert await world.door.find_image(query) == found
    with pytest.raises(errors.NotFoundError):
        await world.door.find_image(port.ImageQuery(filters={"name": ["arch"]}))


async def test_calls_and_mismatches_are_counted() -> None:
    world = World()
    asked = request()
    await world.door.create(asked)
    await world.door.create(asked)
    assert world.cloud.mismatched == []
    await world.door.create(request(asked.id, template="another"))
    assert world.cloud.mismatched == [asked.id]
    assert world.cloud.calls == {Call.CREATE: 3}


async def test_one_error_serves_many_calls() -> None:
    world = World()
    world.script.usual = Outcome(applied=False, error=errors.ThrottledError("slow down", delay=7.0))
    seen = []
    for _ in range(2):
        with pytest.raises(errors.ThrottledError, match="slow down") as caught:
            await world.door.create(request())
        assert caught.value.delay == 7.0
        seen.append(caught.value)
    assert seen[0] is not seen[1]


async def test_hooks_run_outside_the_callers_context() -> None:
    """A simulated agent that a boot starts must not inherit the crash points of the server that created its VM."""
    whose: ContextVar[str] = ContextVar("whose", default="nobody")
    clock, seen = HandClock(), []
    for before, boot in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)):
        script = Script(usual=Outcome(before=before), lives=Life(boot=boot))
        cloud = MemoryCloud(clock, behavior=script, on_boot=lambda asked, vm: seen.append(whose.get()))
        token = whose.set("server")
        call = asyncio.create_task(MemoryProvider(scope(), clock, cloud=cloud).create(request()))
        whose.reset(token)
        await clock.advance(2.0)
        await call
    assert seen == ["nobody"] * 4


async def test_a_failing_hook_is_seen() -> None:
    def fail(asked: port.CreateRequest, vm: port.Vm) -> None:
        raise ZeroDivisionError

    clock = HandClock()
    cloud = MemoryCloud(clock, on_boot=fail)
    with pytest.raises(ZeroDivisionError):
        await MemoryProvider(scope(), clock, cloud=cloud).create(request())


def test_a_late_outcome_needs_an_error() -> None:
    with pytest.raises(ValueError, match="expected an error"):
        Outcome(late=1.0)


ODDS = Odds(
    unavailable=0.1, throttled=0.1, no_capacity=0.1, lost=0.15, unsent=0.1, late=0.15, ignored=0.1,
    latest=20.0, delay=1.0, boot=3.0, dying=5.0, linger=3.0, lag=4.0,
)  # fmt: skip


def test_faults_come_as_often_as_the_odds_say() -> None:
    """Each fault has its own share of the draws, in whatever order they are looked at."""
    fickle = Fickle(SeededRng(1), Odds(unavailable=0.2, throttled=0.2, lost=0.2))
    kinds = [type(fickle.outcome(Call.CREATE, None).error).__name__ for _ in range(3000)]
    shares = {
        kind: kinds.count(kind) / 3000
        for kind in ("UnavailableError", "ThrottledError", "UnknownOutcomeError", "NoneType")
    }
    assert shares == pytest.approx(
        {"UnavailableError": 0.2, "ThrottledError": 0.2, "UnknownOutcomeError": 0.2, "NoneType": 0.4}, abs=0.04
    )


async def story(seed: int, steps: Sequence[int]) -> tuple[list[str], MemoryCloud, dict[str, list[str]]]:
    """Random calls on three IDs, through faults; their answers, and the true state at the end."""
    clock = HandClock()
    lives: dict[str, list[str]] = {"boot": [], "end": []}
    cloud = MemoryCloud(
        clock,
        behavior=Fickle(SeededRng(seed), ODDS),
        on_boot=lambda asked, vm: lives["boot"].append(asked.id),
        on_end=lambda asked, vm: lives["end"].append(asked.id),
    )
    door = MemoryProvider(scope(), clock, cloud=cloud)
    last_seen = []
    wanted = [request(fresh_id()) for _ in range(3)]
    for step in steps:
        asked = wanted[step % 3]
        calls = (lambda a=asked: door.create(a), lambda a=asked: door.delete(a.id, None), door.list)
        call = asyncio.create_task(calls[step // 3 % 3]())
        await clock.advance(2.0)
        assert call.done(), "no call takes longer than its delays"
        error = call.exception()
        assert error is None or isinstance(error, errors.ProviderError)
        last_seen.append(type(error).__name__)
    await clock.advance(60.0)
    return last_seen, cloud, lives


@given(st.integers(0, 2**32), st.lists(st.integers(0, 8), max_size=25))
async def test_faults_never_double_a_vm(seed: int, steps: list[int]) -> None:
    """Faults at random: at most one VM per ID, at most one life each; a seed replays exactly."""
    last_seen, cloud, lives = await story(seed, steps)
    ids = [vm.id for vm in cloud.vms()]
    assert len(ids) == len(set(ids))
    assert len(lives["boot"]) == len(set(lives["boot"]))
    assert len(lives["end"]) == len(set(lives["end"]))
    assert not set(lives["end"]) & set(ids)
    assert (await story(seed, steps))[0] == last_seen
