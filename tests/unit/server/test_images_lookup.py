"""Image lookups: cached, refreshed, and what serves when they fail."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from nstance.config.model.shard import ShardConfig
from nstance.config.model.workload import Image
from nstance.model.ids import ClusterId, ShardId
from nstance.providers import errors
from nstance.providers.memory import MemoryProvider
from nstance.providers.memory_behavior import Call, Outcome, Script
from nstance.providers.memory_cloud import Image as CloudImage
from nstance.providers.memory_cloud import MemoryCloud
from nstance.providers.port import Scope
from nstance.server.cloud.images import Images
from nstance.server.cloud.provider_calls import ProviderCalls
from nstance.server.waits import WAITS
from nstance.server.workload import rendering
from nstance.sim.loop import Machine
from nstance.sim.rng import SeededRng
from nstance.telemetry.metrics import Metrics
from support.virtual_time import virtually

INTERVAL = 3600.0
SETTINGS = ShardConfig.model_validate({"infra": {"provider": "memory", "region": "here", "zone": "a"}})
BASE = Image.model_validate({"filters": [{"name": "name", "values": ["base-*"]}], "owners": ["me"]})
WITH_FALLBACK = BASE.model_copy(update={"fallback": "img-fallback"})
MOMENT = 0.1
AWAY = Outcome(applied=False, error=errors.UnavailableError("the cloud is away"))


async def _at_once() -> None:
    return


class Lookups:
    def __init__(self, clock: Machine) -> None:
        self.clock = clock
        self.script = Script()
        self.cloud = MemoryCloud(self.clock, behavior=self.script)
        self.changes = 0
        provider = MemoryProvider(Scope(cluster=ClusterId("c"), shard=ShardId("s")), self.clock, cloud=self.cloud)
        self.calls = ProviderCalls(
            ready=_at_once,
            clock=self.clock,
            rng=SeededRng("images"),
            metrics=Metrics(),
            waits=WAITS,
            settings=lambda: SETTINGS,
            record_event=lambda code, message: None,
        )
        self.images = Images(
            provider,
            calls=self.calls,
            interval=lambda: INTERVAL,
            on_change=self._on_change,
        )

    def _on_change(self) -> None:
        self.changes += 1

    def publish(self, id: str, created: float) -> None:
        self.cloud.images.append(CloudImage(id=id, created=created, owner="me", attributes={"name": f"base-{id}"}))

    @property
    def asked(self) -> int:
        return self.cloud.calls[Call.FIND_IMAGE]


@asynccontextmanager
async def lookups(
    clock: Machine, image: Image, prepare: Callable[[Lookups], None] = lambda world: None
) -> AsyncIterator[Lookups]:
    """A moment after the first one."""
    world = Lookups(clock)
    prepare(world)
    world.images.configure({"base": image}, kind="memory")
    running = asyncio.create_task(world.images.run())
    try:
        assert world.images.values()["base"] is None  # not known before the first answer, fallback or not
        await clock.sleep(MOMENT)
        yield world
    finally:
        running.cancel()
        world.calls.close()
        await asyncio.gather(running, return_exceptions=True)


@virtually
async def test_the_newest_image_is_found_once_per_interval(clock: Machine) -> None:
    async with lookups(clock, BASE, lambda world: world.publish("img-1", 1.0)) as world:
        assert world.images.values() == {"base": "img-1"}
        world.publish("img-2", 2.0)
        await clock.sleep(INTERVAL - 1)
        assert (world.images.values(), world.asked) == ({"base": "img-1"}, 1)
        await clock.sleep(1)
        assert (world.images.values(), world.asked, world.changes) == ({"base": "img-2"}, 2, 2)


@virtually
async def test_a_failed_lookup_leaves_what_was_found(clock: Machine) -> None:
    async with lookups(clock, WITH_FALLBACK, lambda world: world.publish("img-1", 1.0)) as world:
        world.script.then(Call.FIND_IMAGE, AWAY)
        await clock.sleep(INTERVAL)
        assert world.asked == 2
        assert (world.images.values(), world.images.problem("base")) == ({"base": "img-1"}, "the cloud is away")
        await clock.sleep(WAITS.image_retry.first)
        assert (world.images.values(), world.images.problem("base")) == ({"base": "img-1"}, "")


@pytest.mark.parametrize("delay", [1.0, 40.0])
def test_a_throttled_lookup_is_made_again_when_the_provider_wants_to_be_asked(delay: float) -> None:
    throttled = Outcome(applied=False, error=errors.ThrottledError("too many calls", delay=delay))

    @virtually
    async def story(clock: Machine) -> None:
        async with lookups(clock, WITH_FALLBACK, lambda world: world.script.then(Call.FIND_IMAGE, throttled)) as world:
            assert (world.images.values(), world.images.problem("base")) == (
                {"base": "img-fallback"},
                "too many calls",
            )
            world.publish("img-1", 1.0)
            again = max(WAITS.image_retry.first, delay)
            await clock.sleep(again - 2 * MOMENT)
            assert world.asked == 1
            await clock.sleep(1.0)  # for the pace, and for what lies between two calls
            assert (world.images.values(), world.images.problem("base")) == ({"base": "img-1"}, "")
            assert world.asked == 2

    story()


@virtually
async def test_the_fallback_serves_until_something_was_found(clock: Machine) -> None:
    async with lookups(clock, WITH_FALLBACK) as world:
        assert (world.images.values(), world.asked) == ({"base": "img-fallback"}, 1)
        world.publish("img-1", 1.0)
        await clock.sleep(WAITS.image_retry.first)
        assert world.images.values() == {"base": "img-1"}


@virtually
async def test_without_a_fallback_there_is_none_and_a_reason(clock: Machine) -> None:
    async with lookups(clock, BASE) as world:
        assert world.images.values() == {"base": None}
        assert "no image fits" in world.images.problem("base")
        await clock.sleep(2 * WAITS.image_retry.first)  # it backs off: the third try is not due yet
        assert (world.asked, world.changes) == (2, 1)


@virtually
async def test_an_image_that_was_asked_for_differently_is_another_one(clock: Machine) -> None:
    async with lookups(clock, BASE, lambda world: world.publish("img-1", 1.0)) as world:
        other = BASE.model_copy(update={"owners": ("you",)})
        world.images.configure({"base": other}, kind="memory")
        assert world.images.values() == {"base": None}
        await clock.sleep(MOMENT)
        assert "no image fits" in world.images.problem("base")


@pytest.mark.parametrize(
    "image",
    [Image(fallback="img-fixed"), WITH_FALLBACK.model_copy(update={"provider": "aws", "fallback": "img-fixed"})],
    ids=["no filters", "another provider's"],
)
def test_what_cannot_be_asked_for_is_its_fallback(image: Image) -> None:
    @virtually
    async def story(clock: Machine) -> None:
        world = Lookups(clock)
        world.images.configure({"base": image}, kind="memory")
        running = asyncio.create_task(world.images.run())
        await clock.sleep(MOMENT)
        assert (world.images.values(), world.asked) == ({"base": "img-fixed"}, 0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    story()


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", []),
        ("{{ .Vars.base }}", []),
        ("{{ .Image.known }}", []),
        ("{{ .Image.base }}", ["base"]),
        ("{{ with .Image }}{{ .base }}{{ end }}", ["base"]),
        ('{{ index .Image "base" }}', ["base"]),
        ("{{ toJson .Image }}", ["base"]),
    ],
)
def test_which_images_a_template_may_print(template: str, expected: list[str]) -> None:
    images = {"known": "img-1", "base": None}
    assert rendering.unknown_images([template], images) == expected
    values: dict[str, object] = {"Image": images, "Vars": {"base": "x"}}
    if expected:
        with pytest.raises(rendering.NotFetchedError, match="base"):
            rendering.text(template, values, "args")
    else:
        rendering.text(template, values, "args")
