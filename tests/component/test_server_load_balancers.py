"""Load balancers under whole servers: in after the first report, out before the VM goes, whatever the calls do."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from component.whole_server import CLUSTER, SECONDS, SHARD, Json, World, config, states
from nstance.clock import SystemClock
from nstance.config import load
from nstance.model.ids import InstanceId, ProviderId
from nstance.providers import errors
from nstance.providers.memory_behavior import Call, Outcome, Script
from nstance.server.cache.cache import Cache
from nstance.server.cloud import balancer_sync
from nstance.server.waits import Waits
from nstance.v1.operator_pb2 import GroupConfig
from support.eventually import eventually

QUICK = {"garbage_collection": {"interval": "300ms", "registration_timeout": "60s"}}
AWAY = Outcome(applied=False, error=errors.UnavailableError("the balancer is away"))
DOCS = Path(__file__).parents[2] / "docs" / "load-balancers.md"
HOUR = 3600.0


def configuration(size: int = 2, *names: str, **shard: Any) -> Json:
    used = list(names or ("front",))
    groups = {"acme": {"web": {"template": "web", "size": size, "load_balancers": used}}}
    return config(groups=groups, **shard) | {"load_balancers": {name: {"provider": "memory"} for name in used}}


def vms(world: World, state: str = "running") -> set[ProviderId]:
    """Of the group's instances in that state."""
    shown = states(world, "web", "acme")
    instances = world.leader.shard.instances
    return {str(instances[id].provider_id) for id, each in shown.items() if each == state}  # type: ignore[misc]


def members(world: World, name: str = "front") -> set[ProviderId]:
    return set(world.cloud.load_balancers.get(name, ()))


async def settled(world: World, size: int, name: str = "front") -> set[ProviderId]:
    await eventually(lambda: len(vms(world)) == size and members(world, name) == vms(world))
    return members(world, name)


def record_calls(world: World, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What servers ask of the cloud about members and deletions, in order."""
    calls: list[tuple[str, str]] = []
    for verb in ("register", "deregister"):
        real: Callable[..., Any] = getattr(world.cloud, verb)

        def changed(name: str, id: ProviderId, verb: str = verb, real: Callable[..., Any] = real) -> Any:
            calls.append((verb, id))
            return real(name, id)

        monkeypatch.setattr(world.cloud, verb, changed)
    delete = world.cloud.delete

    def deleted(scope: Any, id: InstanceId, provider_id: ProviderId | None) -> Any:
        calls.append(("delete", str(provider_id)))
        return delete(scope, id, provider_id)

    monkeypatch.setattr(world.cloud, "delete", deleted)
    return calls


class Away(Script):
    """Some calls always fail."""

    def __init__(self, *calls: Call) -> None:
        super().__init__()
        self.calls = calls

    def outcome(self, call: Call, id: InstanceId | None) -> Outcome:
        return AWAY if call in self.calls else super().outcome(call, id)


async def test_in_after_the_first_report_and_out_before_the_vm_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(tmp_path, configuration(2, **QUICK)) as world:
        mute = asyncio.Event()
        monkeypatch.setattr("component.whole_server.LightAgent._report", lambda self: mute.wait())
        server = await world.start()
        await eventually(lambda: len(vms(world)) == 2)  # registered, but not one report
        looks = world.cloud.calls[Call.LOAD_BALANCER_MEMBERS]
        await eventually(lambda: world.cloud.calls[Call.LOAD_BALANCER_MEMBERS] >= looks + 2)
        assert world.cloud.calls[Call.LOAD_BALANCER_REGISTER] == 0
        monkeypatch.undo()
        calls = record_calls(world, monkeypatch)
        mute.set()
        await settled(world, 2)
        world.configure(configuration(0, **QUICK))
        await server.active_config.refresh()
        await eventually(lambda: set(states(world, "web", "acme").values()) == {"deleted"})
        for id in {id for _, id in calls}:
            own = [verb for verb, each in calls if each == id]
            assert own.index("deregister") < own.index("delete")
        assert members(world) == set()


async def test_a_draining_instance_is_out_and_one_that_is_kept_comes_back(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(2)) as world:
        await world.start()
        operator = await world.drainer("acme")
        both = await settled(world, 2)
        await operator.call("UpsertGroup", key="web", config=GroupConfig(size=1))
        await eventually(lambda: vms(world, "draining") and members(world) == vms(world))
        await operator.call("UpsertGroup", key="web", config=GroupConfig(size=2))
        assert await settled(world, 2) == both


async def test_lost_and_late_calls_are_repaired(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(1, **QUICK)) as world:
        lost = errors.UnknownOutcomeError("the answer was lost")
        world.behavior.then(
            Call.LOAD_BALANCER_REGISTER,
            Outcome(applied=False),  # says yes, and does nothing
            Outcome(applied=False, error=lost),
            Outcome(error=lost),
        )
        server = await world.start()
        [first] = await settled(world, 1)
        world.cloud.load_balancers["front"].clear()  # somebody took it out by hand
        await settled(world, 1)
        world.behavior.then(Call.LOAD_BALANCER_DEREGISTER, Outcome(applied=False, error=lost))
        [id] = states(world, "web", "acme")
        world.configure(
            config(groups={"acme": {"web": {"template": "web", "size": 1}}}, **QUICK)
            | {"load_balancers": {"front": {"provider": "memory"}}}
        )
        await server.active_config.refresh()  # the group does not use it any more
        await eventually(lambda: not members(world))
        world.cloud.register("front", first)  # a call of long ago is applied after all
        await eventually(lambda: not members(world))
        assert states(world, "web", "acme") == {id: "running"}


class Held(SystemClock):
    """A clock whose hours last until `over` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        await (self.over.wait() if seconds == HOUR else super().sleep(seconds))


async def test_who_leaves_while_its_registration_waits_is_never_registered(tmp_path: Path) -> None:
    """More than are called at once, and each call takes long."""
    size = balancer_sync.MAX_CONCURRENT_CALLS + 3
    async with World(tmp_path, configuration(size)) as world:
        world.waits = Waits(deregistration=SECONDS)
        world.cloud._clock = clock = Held()
        world.behavior.then(Call.LOAD_BALANCER_REGISTER, *[Outcome(before=HOUR)] * balancer_sync.MAX_CONCURRENT_CALLS)
        server = await world.start()
        balancer = server.lead_now.load_balancers._balancers["front"]
        await eventually(lambda: len(balancer._in_flight) == size)
        world.configure(configuration(0))
        await server.active_config.refresh()
        await eventually(lambda: "running" not in states(world, "web", "acme").values())
        clock.over.set()
        await eventually(lambda: set(states(world, "web", "acme").values()) == {"deleted"})
        assert world.cloud.calls[Call.LOAD_BALANCER_REGISTER] == balancer_sync.MAX_CONCURRENT_CALLS
        assert members(world) == set()


async def test_a_broken_balancer_delays_nobody_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot even be listed: instances live and die, and another balancer is served."""
    async with World(tmp_path, configuration(2, "front", "back")) as world:
        world.waits = Waits(deregistration=2.0)
        server = await world.start()
        both = await settled(world, 2, "back")
        await settled(world, 2, "front")
        real = world.cloud.deregister

        def deregister(name: str, id: ProviderId) -> None:
            if name == "front" and world.cloud._machines[id].dead is None:
                raise errors.UnavailableError("the balancer is away")
            real(name, id)

        monkeypatch.setattr(world.cloud, "deregister", deregister)
        world.configure(configuration(1, "front", "back"))
        await server.active_config.refresh()
        await eventually(lambda: sorted(states(world, "web", "acme").values()) == ["deleted", "running"])
        assert await settled(world, 1, "back") < both
        operator = await world.operator("acme")
        events = (await operator.call("ListEvents", group="web")).events
        assert [e.message for e in events if e.reason == "load-balancer" and "front" in e.message]
        assert not [e.message for e in events if e.reason == "load-balancer" and "back" in e.message]


async def test_listing_fails_and_instances_are_registered_all_the_same(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(2)) as world:
        world.cloud.behavior = Away(Call.LOAD_BALANCER_MEMBERS)
        server = await world.start()
        await settled(world, 2)
        world.configure(configuration(1))
        await server.active_config.refresh()
        await settled(world, 1)
        assert not server.lead_now.load_balancers._balancers["front"].is_listed


async def test_a_new_leader_keeps_members_and_leaves_strangers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(tmp_path, configuration(2)) as world:
        stranger = ProviderId("of-somebody-else")
        world.cloud.load_balancers["front"] = [stranger]
        first = await world.start("a")
        await eventually(lambda: members(world) == {*vms(world), stranger} and len(vms(world)) == 2)
        calls = record_calls(world, monkeypatch)
        await first.stop()
        world.behavior.then(Call.LOAD_BALANCER_MEMBERS, Outcome(after=0.7))  # agents are back before it is listed
        server = await world.start("b")
        await eventually(lambda: all(agent.connected for agent in world.agents.values()))
        balancer = server.lead_now.load_balancers._balancers["front"]
        await eventually(lambda: balancer.is_listed and len(balancer.context.ready) == 2)
        assert (calls, members(world)) == ([], {*vms(world), stranger})
    cache = Cache.open(tmp_path / "a" / "db" / "nstance.db", cluster=CLUSTER, shard=SHARD, clock=SystemClock())
    try:
        assert await cache.members("front") == set(world.agents)  # for the time before a listing succeeds
    finally:
        await cache.close()


async def test_the_example_of_the_docs(tmp_path: Path) -> None:
    text = DOCS.read_text().split("```jsonc\n")[1].split("```")[0]
    settings = load.load(text.encode(), source="docs", shard=None)
    assert settings.load_balancers["front"].provider == "memory"
    assert [group.load_balancers for group in settings.groups.values()] == [("front",)]
