"""What a dashboard needs from the operator service: the control plane, events as they become durable, who asked."""

from pathlib import Path

from grpclib.const import Status

from component.whole_server import World, config
from nstance.v1 import operator_pb2
from support.eventually import eventually

STATIC = {"default": {"web": {"template": "web", "size": 2, "drain_timeout": "0"}}}


async def test_the_leader_its_standbys_and_its_numbers(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start("a")
        operator = await world.operator()
        alone = await operator.call("GetControlPlane")
        assert (alone.leader, alone.epoch, list(alone.standbys), alone.provider_rate) == ("a", 1, [], 0.0)
        await world.start("b", lead=False)
        now = await operator.call("GetControlPlane")
        assert [each.server for each in now.standbys] == ["b"]
        assert 0 <= now.standbys[0].answered_ms < 60_000
        assert now.leading_ms >= alone.leading_ms
        found = {
            (each.name, each.labels.get("op", ""), each.labels.get("code", "")): each.value for each in now.metrics
        }
        assert found["nstance_storage_requests_total", "create", "ok"] > 0
        assert found["nstance_provider_requests_total", "create", "ok"] == 2
        assert not any({"tenant", "group"} & set(each.labels) for each in now.metrics)


async def test_every_event_reaches_a_watcher_when_it_is_in_the_journal(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        operator, other = await world.operator(), await world.operator("acme")
        async with operator.watch(events=True) as watching, other.watch(events=True) as foreign:
            assert await watching.snapshot() == []
            await foreign.snapshot()
            request = operator_pb2.UpsertGroupRequest(key="web", config=operator_pb2.GroupConfig(size=3))
            await operator.call("UpsertGroup", request)
            seen = (await watching.until(lambda message: message.event.reason == "config")).event
            listed = (await operator.call("ListEvents", limit=1000)).events
            assert seen in listed
            pushed = [message.event for message in watching.seen if message.WhichOneof("kind") == "event"]
            assert [each.id for each in pushed] == sorted(each.id for each in pushed)
            await other.call("UpsertGroup", key="own", config=operator_pb2.GroupConfig(template="web", size=0))
            first = await foreign.until(lambda message: message.WhichOneof("kind") == "event")
            assert first.event.group == "own"  # nothing of another tenant came before it


async def test_a_watch_without_events_has_none(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        operator = await world.operator()
        async with operator.watch() as watching:
            await watching.snapshot()
            await operator.call("UpsertGroup", key="web", config=operator_pb2.GroupConfig(size=3))
            await watching.until(lambda message: message.group.size == 3 and message.group.ready_size == 3)
            assert {message.WhichOneof("kind") for message in watching.seen} == {"group", "instance", "snapshot_end"}


async def test_events_of_some_reasons(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        operator = await world.operator()

        async def registered() -> bool:
            found = (await operator.call("ListEvents", reasons=["registered", "nonsense"])).events
            return [each.reason for each in found] == ["registered"] * 2

        await eventually(registered)
        refused = await operator.refused("ListEvents", reasons=["x"] * 51)
        assert refused.status is Status.INVALID_ARGUMENT


async def test_the_person_behind_an_operator_is_in_the_history_and_gets_no_rights(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC), agents=False) as world:
        await world.start()
        operator = await world.operator()
        upsert = operator.stub.UpsertGroup
        for person, noted in (("ada@example.org", True), ("<img src=x>", False), ("x" * 200, False)):
            request = operator_pb2.UpsertGroupRequest(key="web", config=operator_pb2.GroupConfig(size=len(person)))
            answer = await upsert(request, metadata={"nstance-person": person})
            by = answer.group.size_source.by
            assert by == (f"{operator.identity.id} for {person}" if noted else operator.identity.id)
        found = (await operator.call("ListEvents", reasons=["config"])).events
        assert any("for ada@example.org" in each.message for each in found)
        assert not any("<img" in each.message for each in found)


async def test_hashes_of_a_group_and_the_report_of_an_agent(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        operator = await world.operator()
        [group] = (await operator.call("ListGroups")).groups
        assert group.infra_hash.startswith("sha256:")
        assert group.runtime_hash.startswith("sha256:")
        [first, _] = (await operator.call("ListInstances")).instances

        async def report() -> operator_pb2.AgentReport | None:
            found = (await operator.call("GetInstanceStatus", instance_id=first.instance_id)).report
            return found if found.files_hash else None

        found = await eventually(report)
        assert (found.version, found.files_hash) == ("test", found.wanted_files_hash)
        assert first.revision == group.infra_hash
