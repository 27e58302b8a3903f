"""The operator's links to shards, against whole servers: snapshots, losses, silence, standbys, changes of the file."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench import wires
from bench.wires import Wire

from component.whole_server import CLUSTER, SHARD, Operator, World, config, states
from nstance.config.addresses import Service
from nstance.model.ids import ShardId, TenantId
from nstance.model.roles import Role
from nstance.operator.config_file import Configuration, Endpoints
from nstance.operator.metrics import Metrics
from nstance.operator.options import Waits
from nstance.operator.shards import link as linking
from nstance.operator.shards import links
from nstance.operator.shards.links import Links
from nstance.operator.shards.ports import ShardRefusedError, ShardUnreachableError
from nstance.pki import keys
from nstance.tasks.backoff import Backoff
from nstance.v1 import operator_pb2 as pb
from nstance.wire import credentials
from support.eventually import eventually

OTHER = ShardId("zone-b")
GROUPS = {"default": {"web": {"template": "web", "size": 2}}}


WAITS = Waits(ping=0.2, pong=2.0, link_retry=Backoff(0.2, 0.2, jitter=1.0))


@dataclass
class Ear:
    """Records every change."""

    shards: list[str] = field(default_factory=list)
    groups: list[tuple[str, str]] = field(default_factory=list)
    instances: list[pb.InstanceEvent] = field(default_factory=list)
    troubles: list[pb.Event] = field(default_factory=list)

    def on_shard_change(self, shard: str) -> None:
        self.shards.append(shard)

    def on_group_change(self, shard: str, group: str) -> None:
        self.groups.append((shard, group))

    def on_instance_change(self, shard: str, event: pb.InstanceEvent) -> None:
        self.instances.append(event)

    def on_error_event(self, shard: str, event: pb.Event) -> None:
        self.troubles.append(event)


def settings(**addresses: str) -> Configuration:
    return Configuration(
        cluster=CLUSTER,
        tenant=TenantId("default"),
        shards={
            ShardId(name.replace("_", "-")): Endpoints(registration=("x:1",), operator=tuple(text.split(",")))
            for name, text in addresses.items()
        },
    )


def operator_port(world: World, server: str = "a") -> int:
    return world.servers[server].base + list(Service).index(Service.OPERATOR)


@contextlib.asynccontextmanager
async def linked(world: World, operator: Operator, configuration: Configuration) -> AsyncIterator[tuple[Links, Ear]]:
    shown = credentials.read(
        operator.certificate_pem.encode(), keys.private_to_pem(operator.key).encode(), world.ca_pem.encode()
    )
    ear = Ear()
    links = Links(
        configuration, credentials=lambda: shown, metrics=Metrics(), clock=world.clock, rng=world.rng, waits=WAITS
    )
    links.add_listener(ear)
    task = asyncio.create_task(links.run())
    try:
        yield links, ear
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def link(links: Links, name: str = SHARD) -> linking.Link:
    found = links.get(name)
    assert found is not None
    return found


async def test_a_snapshot_then_changes_and_calls(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        operator = await world.operator()
        await eventually(lambda: list(states(world, "web").values()) == ["running"] * 2)
        async with linked(world, operator, settings(zone_a=f"127.0.0.1:{operator_port(world)}")) as (links, ear):
            shard = link(links)
            assert not shard.synced
            assert shard.unsynced_reason == "not connected yet"
            with pytest.raises(ShardUnreachableError, match="zone-a"):
                await shard.get_instance("web-00000000000000000000000000")
            await eventually(lambda: shard.synced)
            assert shard.unsynced_reason == ""
            assert list(shard.groups) == ["web"]
            assert set(shard.instances) == set(states(world, "web"))
            assert ear.shards == [SHARD]
            status = await shard.upsert_group(
                pb.UpsertGroupRequest(key="new", config=pb.GroupConfig(template="web", size=1))
            )
            assert (status.key, status.size) == ("new", 1)
            await eventually(lambda: "new" in shard.groups and shard.groups["new"].ready_size == 1)
            await shard.upsert_group(pb.UpsertGroupRequest(key="new", config=pb.GroupConfig(template="web", size=0)))
            leaving = await eventually(lambda: [e for e in ear.instances if e.state == "draining" and e.waits])
            assert (await shard.acknowledge_drained(leaving[0].instance_id)).accepted
            await eventually(lambda: [e for e in ear.instances if e.state == "deleted"])
            assert leaving[0].instance_id not in shard.instances
            await shard.delete_group("new")
            await eventually(lambda: "new" not in shard.groups)
            assert ear.groups[-1] == (SHARD, "new")
            with pytest.raises(ShardRefusedError) as refused:
                await shard.upsert_group(pb.UpsertGroupRequest(key="web", config=pb.GroupConfig(size=1), etag="wrong"))
            assert refused.value.code == "ABORTED"
            with pytest.raises(ShardRefusedError) as refused:
                await shard.delete_group("web")
            assert refused.value.code == "FAILED_PRECONDITION"


async def test_what_a_new_snapshot_lacks_was_deleted(tmp_path: Path) -> None:
    """The watch is lost, a group and its instance go meanwhile, and one drain is cancelled."""
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        operator = await world.drainer()
        await operator.call("UpsertGroup", key="new", config=pb.GroupConfig(template="web", size=1))
        await eventually(lambda: list(states(world, "new").values()) == ["running"])
        await eventually(lambda: list(states(world, "web").values()) == ["running"] * 2)
        await operator.call("UpsertGroup", key="web", config=pb.GroupConfig(size=1))
        async with (
            wires.listening(Wire(operator_port(world))) as wire,
            linked(world, operator, settings(zone_a=wire.address)) as (links, ear),
        ):
            shard = link(links)
            (gone,) = states(world, "new")
            await eventually(
                lambda: shard.synced and any(each.state == "draining" for each in shard.instances.values())
            )
            wire.hold()
            wire.reset()
            await eventually(lambda: not shard.synced)
            assert "new" in shard.groups  # remembered, though not the truth any more
            await operator.call("UpsertGroup", key="web", config=pb.GroupConfig(size=2))
            await operator.call("DeleteGroup", key="new")
            await operator.call("AcknowledgeDrained", instance_id=gone)
            await eventually(lambda: set(states(world, "new").values()) <= {"deleted"})
            ear.groups.clear()
            ear.instances.clear()
            wire.pass_on()
            await eventually(lambda: shard.synced)
            assert (SHARD, "new") in ear.groups
            assert [e.state for e in ear.instances if e.instance_id == gone] == ["deleted"]
            assert gone not in shard.instances
            assert [e.state for e in ear.instances if e.drain_cancelled] == ["running"]


async def test_a_silent_shard_delays_nobody_else(tmp_path: Path) -> None:
    """A stopped server (SIGSTOP) or a black hole: its calls fail, first after a while, then at once; the other goes on."""
    one = World(tmp_path / "1", config())
    two = World(tmp_path / "2", config(), shard=OTHER, beside=one)
    async with one, two:
        await one.start()
        await two.start("b")
        operator = await one.operator()
        async with wires.listening(Wire(operator_port(one))) as wire:
            configuration = settings(zone_a=wire.address, zone_b=f"127.0.0.1:{operator_port(two, 'b')}")
            async with linked(one, operator, configuration) as (links, _):
                silent, well = link(links), link(links, OTHER)
                await eventually(lambda: silent.synced and well.synced)
                wire.hold()
                hanging = [
                    asyncio.create_task(
                        silent.upsert_group(
                            pb.UpsertGroupRequest(key="g", config=pb.GroupConfig(template="web", size=0))
                        )
                    )
                    for _ in range(linking.MAX_CALLS + 5)
                ]
                for number in range(20):
                    await well.upsert_group(
                        pb.UpsertGroupRequest(key=f"g{number}", config=pb.GroupConfig(template="web", size=0))
                    )
                results = await asyncio.gather(*hanging, return_exceptions=True)
                assert {type(result) for result in results} == {ShardUnreachableError}
                await eventually(lambda: not silent.synced)
                assert "unresponsive" in silent.unsynced_reason or "no answer" in silent.unsynced_reason
                await eventually(lambda: silent._channel)  # it tries again; calls do not wait for that
                with pytest.raises(ShardUnreachableError, match="is not reachable"):
                    await silent.upsert_group(
                        pb.UpsertGroupRequest(key="g", config=pb.GroupConfig(template="web", size=0))
                    )
                assert well.synced
                wire.pass_on()
                await eventually(lambda: silent.synced)
                await silent.upsert_group(pb.UpsertGroupRequest(key="g", config=pb.GroupConfig(template="web", size=0)))


async def test_addresses_are_tried_in_turn_over_a_fail_over(tmp_path: Path) -> None:
    """The first address is dead, the second a standby's; when the leader crashes, its successor is found."""
    async with World(tmp_path, config()) as world:
        await world.start("a")
        standby = await world.start("b", lead=False)
        operator = await world.operator()
        configuration = settings(
            zone_a=f"127.0.0.1:9,127.0.0.1:{operator_port(world, 'b')},127.0.0.1:{operator_port(world)}"
        )
        async with linked(world, operator, configuration) as (links, ear):
            shard = link(links)
            await eventually(lambda: shard.synced)
            await world.servers["a"].crash()
            await eventually(lambda: not shard.synced)
            await standby.until(lambda: standby.lead is not None)
            await eventually(lambda: shard.synced)
            await shard.upsert_group(pb.UpsertGroupRequest(key="g", config=pb.GroupConfig(template="web", size=0)))
            assert ear.shards.count(SHARD) >= 3


async def test_shards_come_move_and_go_with_the_file(tmp_path: Path) -> None:
    one = World(tmp_path / "1", config())
    two = World(tmp_path / "2", config(), shard=OTHER, beside=one)
    async with one, two:
        await one.start()
        await two.start("b")
        operator = await one.operator()
        there = f"127.0.0.1:{operator_port(two, 'b')}"
        async with (
            wires.listening(Wire(operator_port(one))) as wire,
            linked(one, operator, settings(zone_a=wire.address)) as (links, ear),
        ):
            await eventually(lambda: link(links).synced)
            links.apply(settings(zone_b=there, zone_a=wire.address))
            assert links.names() == (OTHER, SHARD)
            await eventually(lambda: link(links, OTHER).synced)
            first = link(links)
            links.apply(settings(zone_b=there, zone_a=f"127.0.0.1:{operator_port(one)}"))
            await eventually(lambda: not first.synced)
            await eventually(lambda: first.synced)
            assert link(links) is first
            ear.shards.clear()
            links.apply(settings(zone_a=f"127.0.0.1:{operator_port(one)}"))
            assert links.get(OTHER) is None
            assert ear.shards == [OTHER]
            assert link(links).synced


async def test_a_server_of_another_shard_and_a_revoked_operator_have_distinct_reasons(tmp_path: Path) -> None:
    async with World(tmp_path, config()) as world:
        await world.start()
        operator = await world.operator()
        here = f"127.0.0.1:{operator_port(world)}"
        async with linked(world, operator, settings(zone_b=here, zone_c="127.0.0.1:9")) as (links, _):
            wrong, dead = link(links, OTHER), link(links, "zone-c")
            assert "expected shard zone-b, found zone-a" in await eventually(
                lambda: wrong.unsynced_reason if "expected" in wrong.unsynced_reason else ""
            )
            assert await eventually(lambda: dead.unsynced_reason == "127.0.0.1:9: connection refused")
        other = await world.operator(role=Role.ADMIN)
        async with linked(world, operator, settings(zone_a=here)) as (links, _):
            await eventually(lambda: link(links).synced)
            await other.call("RevokeOperator", operator_id=operator.identity.id)
            await eventually(lambda: "not registered" in link(links).unsynced_reason)


def test_a_broken_listener_takes_nothing_from_the_others() -> None:
    class Broken(Ear):
        def on_shard_change(self, shard: str) -> None:
            raise RuntimeError("a bug")

    ear, everybody = Ear(), links.Listeners()
    everybody.add(Broken())
    everybody.add(ear)
    everybody.on_shard_change("zone-a")
    assert ear.shards == ["zone-a"]


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ({"state": "running"}, {"state": "running"}, False),
        ({"state": "draining", "deadline_unix_ms": 60_000}, {"state": "draining", "deadline_unix_ms": 60_900}, False),
        ({"state": "draining", "deadline_unix_ms": 60_000}, {"state": "draining", "deadline_unix_ms": 30_000}, True),
        ({"state": "running"}, {"state": "draining"}, True),
        ({"state": "running", "drain_cancelled": True}, {"state": "running"}, False),
    ],
)
def test_what_counts_as_a_change_over_a_loss(before: dict[str, Any], after: dict[str, Any], differs: bool) -> None:
    """A deadline that was brought forward while the link was down (a spot notice) counts; a clock's jitter does not."""
    assert linking._differs(pb.InstanceEvent(**before), pb.InstanceEvent(**after)) is differs


async def test_a_flood_of_changes_never_leaves_the_link_behind(tmp_path: Path) -> None:
    async with World(tmp_path, config(), agents=False) as world:
        await world.start()
        operator = await world.operator()
        async with linked(world, operator, settings(zone_a=f"127.0.0.1:{operator_port(world)}")) as (links, _):
            shard = link(links)
            await eventually(lambda: shard.synced)

            async def is_upserted(key: str) -> bool:
                """As controllers do: a server that doubts its lease for a moment is asked again."""
                with contextlib.suppress(ShardUnreachableError):
                    await shard.upsert_group(
                        pb.UpsertGroupRequest(key=key, config=pb.GroupConfig(template="web", size=0))
                    )
                    return True
                return False

            await asyncio.gather(*(eventually(partial(is_upserted, f"g{n}")) for n in range(100)))
            await eventually(lambda: len(shard.groups) == 100)
