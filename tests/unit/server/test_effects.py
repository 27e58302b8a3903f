"""Every call to the provider ends in one event, and an error is never read as an absence."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from nstance.clock import SystemClock, SystemRng
from nstance.config.model.shard import ShardConfig
from nstance.model import decision as dec
from nstance.model import events as ev
from nstance.model.ids import GroupKey, GroupName, IdMaker, Kind, ProviderId, TenantId
from nstance.model.instance import Instance, State
from nstance.model.offer import CapacityScope
from nstance.providers import errors
from nstance.providers.port import CreateRequest, Status, Traits, Vm
from nstance.server.cloud.effects import MIN_LOOKUPS_FOR_LISTING, EffectContext, Effects
from nstance.server.cloud.provider_calls import ProviderCalls
from nstance.server.waits import WAITS
from nstance.telemetry.metrics import Metrics

KEY = GroupKey(TenantId("acme"), GroupName("web"))
SETTINGS = ShardConfig.model_validate({"infra": {"provider": "memory", "region": "here", "zone": "a"}})
CLOCK = SystemClock()
IDS = IdMaker(wall=CLOCK.wall, bits=SystemRng().bits)


class FailingProvider:
    """Every call fails with the error that is given."""

    traits = Traits()

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.found: Vm | None = None  # unless this is set: then lookups find it

    async def get(self, *_: object) -> Vm:
        if self.found is None:
            raise self._error
        return self.found

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def fail(*_: object) -> None:
            raise self._error

        return fail


class Scene:
    def __init__(self, error: Exception, *, is_exhausted: bool = False) -> None:
        self.events: asyncio.Queue[ev.Event] = asyncio.Queue()
        self.provider = FailingProvider(error)
        metrics = Metrics()

        async def now(*_: object) -> None:
            return None

        self.effects = Effects(
            EffectContext(
                provider=self.provider,  # type: ignore[arg-type]
                console=None,
                calls=ProviderCalls(
                    ready=now,
                    clock=CLOCK,
                    rng=SystemRng(),
                    metrics=metrics,
                    waits=WAITS,
                    settings=lambda: SETTINGS,
                    record_event=lambda code, message: None,
                ),
                clock=CLOCK,
                metrics=metrics,
                settings=lambda: SETTINGS,
                make_request=_request,
                is_wanted=lambda id: True,
                is_exhausted=lambda instance: is_exhausted,
                post=self.events.put_nowait,
                wait_deregistered=now,
                on_console_output=lambda instance, output: None,
            )
        )

    async def outcome(self, effect: dec.Effect, instance: Instance) -> ev.Event:
        self.effects.start(effect, instance, CLOCK.monotonic())
        return await asyncio.wait_for(self.events.get(), 10)


def _request(instance: Instance) -> CreateRequest:
    return CreateRequest(
        id=instance.id,
        tenant=instance.tenant,
        group=instance.group,
        kind=Kind("web"),
        template="web",
        created=instance.created,
    )


def instance(**fields: Any) -> Instance:
    known: dict[str, Any] = {"state": State.PENDING, "created": CLOCK.steady(), **fields}
    return Instance(id=IDS.make(Kind("web")), tenant=KEY.tenant, group=KEY.name, **known)


@pytest.fixture(
    params=[
        errors.UnavailableError("no"),
        errors.UnknownOutcomeError("no"),
        errors.PermanentError("no"),
        errors.ProviderError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
async def unclear(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    scene = Scene(request.param)
    yield scene
    await scene.effects.close()


@pytest.fixture
async def broken() -> AsyncIterator[Scene]:
    scene = Scene(RuntimeError("a bug in the provider"))
    yield scene
    await scene.effects.close()


async def test_an_intent_whose_look_up_failed_is_not_absent(unclear: Scene) -> None:
    """The configuration changed since the intent, so it is looked up instead of asked for again. If that fails, an earlier
    leader's VM may be there: were it given up as never made, a second one would take its place."""
    overtaken = instance(request_hash="of another configuration")
    event = await unclear.outcome(dec.CreateVm(overtaken.id), overtaken)
    assert event == ev.VmCreateFailed(overtaken.id, ev.Failure.UNAVAILABLE, "no")


async def test_an_intent_that_the_provider_does_not_know_is_stale() -> None:
    scene, overtaken = Scene(errors.NotFoundError("not found")), instance(request_hash="of another configuration")
    event = await scene.outcome(dec.CreateVm(overtaken.id), overtaken)
    assert isinstance(event, ev.VmCreateFailed)
    assert event.failure is ev.Failure.STALE


async def test_an_intent_whose_vm_is_found_was_made_by_a_provider_whose_answers_lag() -> None:
    """Its record says so: a later "not found" may come from an old replica."""
    scene, overtaken = Scene(errors.UnavailableError("no")), instance(request_hash="of another configuration")
    scene.provider.found = Vm(id=overtaken.id, provider_id=ProviderId("vm-1"), status=Status.RUNNING)
    event = await scene.outcome(dec.CreateVm(overtaken.id), overtaken)
    assert isinstance(event, ev.VmCreated)
    assert not event.seen


async def test_a_vm_that_could_not_be_looked_at_is_unknown(unclear: Scene) -> None:
    there = instance(state=State.RUNNING, provider_id=ProviderId("vm-1"))
    event = await unclear.outcome(dec.CheckVm(there.id, there.provider_id), there)
    assert event == ev.VmChecked(there.id, ev.VmState.UNKNOWN)


async def test_an_error_that_nobody_expected_is_an_outcome_too(broken: Scene) -> None:
    """Without an event the shard would wait for this call until its term ends, and never repeat it."""
    there = instance(state=State.RUNNING, provider_id=ProviderId("vm-1"))
    created = await broken.outcome(dec.CreateVm(there.id), there)
    assert isinstance(created, ev.VmCreateFailed)
    assert created.failure is ev.Failure.UNKNOWN
    assert isinstance(await broken.outcome(dec.DeleteVm(there.id, there.provider_id), there), ev.VmDeleteFailed)
    checked = await broken.outcome(dec.CheckVm(there.id, there.provider_id), there)
    assert checked == ev.VmChecked(there.id, ev.VmState.UNKNOWN)


async def test_looks_that_a_broken_listing_should_have_answered_end_too(broken: Scene) -> None:
    many = [instance(state=State.RUNNING, provider_id=ProviderId(f"vm-{n}")) for n in range(MIN_LOOKUPS_FOR_LISTING)]
    for each in many:
        broken.effects.start(dec.CheckVm(each.id, each.provider_id), each, CLOCK.monotonic())
    async with asyncio.timeout(10):
        found = [await broken.events.get() for _ in many]
    assert {event.id for event in found if isinstance(event, ev.VmChecked)} == {each.id for each in many}


@pytest.mark.parametrize(
    ("error", "failure", "scope"),
    [
        (errors.NoCapacityError("no", scope=CapacityScope.MARKET), ev.Failure.NO_CAPACITY, CapacityScope.MARKET),
        (errors.UnavailableError("no"), ev.Failure.UNAVAILABLE, CapacityScope.OFFER),
        (errors.OutOfReachError("no"), ev.Failure.UNAVAILABLE, None),
        (errors.UnknownOutcomeError("no"), ev.Failure.UNKNOWN, CapacityScope.OFFER),
        (errors.PermanentError("no"), ev.Failure.REFUSED, None),
    ],
)
async def test_what_a_failed_create_says_about_its_offer(
    error: errors.ProviderError, failure: ev.Failure, scope: CapacityScope | None
) -> None:
    scene, asked = Scene(error), instance()
    assert await scene.outcome(dec.CreateVm(asked.id), asked) == ev.VmCreateFailed(asked.id, failure, "no", scope)


async def test_an_exhausted_offer_is_not_asked_unless_the_vm_may_exist() -> None:
    scene, asked = Scene(errors.UnknownOutcomeError("no"), is_exhausted=True), instance()
    event = await scene.outcome(dec.CreateVm(asked.id), asked)
    assert isinstance(event, ev.VmCreateFailed)
    assert (event.failure, event.scope) == (ev.Failure.SKIPPED, None)
    event = await scene.outcome(dec.CreateVm(asked.id, may_exist=True), asked)
    assert isinstance(event, ev.VmCreateFailed)
    assert event.failure is ev.Failure.UNKNOWN
