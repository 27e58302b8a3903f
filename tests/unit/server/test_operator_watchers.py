"""Watchers: the snapshot and what follows it are one story, also when a group changes back and forth."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nstance.config.overrides import FileValues
from nstance.model.decision import Reason, ReasonCode
from nstance.model.group import Group
from nstance.model.ids import GroupKey, GroupName, InstanceId, Kind, TenantId
from nstance.model.instance import Cause, Drain, Instance, Put, Remove, State
from nstance.server.api import watchers
from nstance.server.api.statuses import Statuses
from nstance.server.api.watchers import Kinds, Watcher, WatcherOverrunError, Watchers
from nstance.server.leader.readiness import Readiness
from nstance.server.state.commits import Committed
from nstance.server.state.committed_records import CommittedRecords
from nstance.v1.operator_pb2 import WatchMessage, WatchRequest

ACME = TenantId("acme")
WEB = GroupKey(ACME, GroupName("web"))
ALL = Kinds(True, True, True)


def instance(number: int, state: State = State.RUNNING) -> Instance:
    id = InstanceId(f"web-{number:026d}")
    return Instance(id=id, tenant=ACME, group=WEB.name, state=state, created=1.0, ready_at=2.0)


class World:
    def __init__(self, *members: Instance) -> None:
        group = Group(
            key=WEB,
            size=1,
            template="web",
            kind=Kind("web"),
            infra_hash="sha256:1",
            runtime_hash="sha256:2",
            static=True,
        )
        file = FileValues(size=None, instance_type="", own_instance_type="", vars={})
        spec = SimpleNamespace(template=SimpleNamespace(capacity={}))
        self.resolved = SimpleNamespace(group=group, etag="e", file=file, spec=spec, arch="amd64")
        shard: Any = SimpleNamespace(
            facts={},
            desired_groups={},
            blocked_reason=lambda key: "",
            group_records={},
            trend=lambda key: SimpleNamespace(last_error=""),
            no_capacity_reason=lambda key: "",
            offers=SimpleNamespace(list_exhausted=lambda group: []),
            members=lambda key: {m.id: m for m in members},
        )
        groups: dict[GroupKey, Any] = {WEB: self.resolved}
        agents: Any = SimpleNamespace(get=lambda id: None, has_left=lambda id: id in self.left)
        self.configuration = SimpleNamespace(groups=groups, dynamic=SimpleNamespace(groups={}), prices=None)
        active_config: Any = SimpleNamespace(configuration=self.configuration)
        blocked_groups: Any = SimpleNamespace(failure=lambda key: "")
        self.left: set[InstanceId] = set()  # agents that have gone away
        readiness = Readiness(shard, agents, cast(Any, None), on_ready=lambda id, ready: None)
        self.records = CommittedRecords({m.id: m for m in members})
        clock = cast(Any, SimpleNamespace(wall=lambda: 5.0, steady=lambda: 5.0))
        context: Any = SimpleNamespace(shard=shard, agents=agents, readiness=readiness, active_config=active_config)
        statuses = Statuses(context, blocked_groups, self.records, None, clock)
        self.watchers = Watchers(active_config, self.records, statuses)

    def put(self, after: Instance, *reasons: Reason) -> None:
        before = self.records.get(after.id)
        self.commit(Committed(after.key, (Put(after),), reasons, {before.id: before} if before else {}))

    def commit(self, committed: Committed) -> None:
        self.records.observe(committed)
        self.watchers.observe(committed)


async def drained(watcher: Watcher) -> list[WatchMessage]:
    found = []
    try:
        async with asyncio.timeout(4 * watchers.BATCH_SECONDS):
            while True:
                found.append(await watcher.take())
    except TimeoutError:
        return found


def test_no_kind_means_all() -> None:
    assert watchers.kinds(WatchRequest()) == ALL
    assert watchers.kinds(WatchRequest(errors=True)) == Kinds(False, False, True)


async def test_a_group_that_changed_back_before_it_was_sent_is_sent_right() -> None:
    one = instance(1)
    world = World(one)
    with world.watchers.open(ACME, ALL):
        world.put(replace(one, suspect=True))
        with world.watchers.open(ACME, ALL) as late:  # its snapshot shows the group without a ready instance
            [status, *_] = late.snapshot
            assert status.ready_size == 0  # type: ignore[union-attr]
            world.put(one)
            assert [m.group.ready_size for m in await drained(late) if m.HasField("group")] == [1]


async def test_readiness_is_sent_although_no_record_changes() -> None:
    one = instance(1)
    world = World(one)
    with world.watchers.open(ACME, ALL) as watcher, world.watchers.open(ACME, Kinds(False, False, True)) as other:
        world.left.add(one.id)
        world.watchers.on_readiness_change(one.id)
        messages = await drained(watcher)
        assert [(m.instance.ready, m.instance.not_ready) for m in messages if m.HasField("instance")] == [
            (False, "its agent is not connected")
        ]
        assert [(m.group.ready_size, m.group.not_ready) for m in messages if m.HasField("group")] == [(0, 1)]
        assert await drained(other) == []
        world.watchers.on_readiness_change(InstanceId("web-unknown"))
        assert await drained(watcher) == []


async def test_only_visible_changes_are_sent() -> None:
    one = instance(1)
    world = World(one)
    with world.watchers.open(ACME, ALL) as watcher:
        world.put(replace(one, certificate_serial="ff"))
        world.put(replace(one, certificate_serial="ff", ip4="10.0.0.1"))
        gone = replace(one, state=State.DELETING, cause=Cause.GONE, ip4="10.0.0.1")
        world.put(gone, Reason(ReasonCode.GONE, "it is gone", one.id), Reason(ReasonCode.REPLACE, "no trouble", one.id))
        world.put(replace(gone, state=State.DELETED))
        world.commit(Committed(WEB, (Remove(one.id),), (), {}))
        messages = await drained(watcher)
        assert [m.instance.state for m in messages if m.HasField("instance")] == ["running", "deleting", "deleted"]
        assert [m.error.message for m in messages if m.HasField("error")] == ["it is gone"]
        assert [m.group.actual_size for m in messages if m.HasField("group")] == [0]
    with world.watchers.open(ACME, ALL) as watcher:
        assert len(watcher.snapshot) == 1  # the group


async def test_a_drain_and_its_end() -> None:
    one = instance(1)
    world = World(one)
    drain = Drain(started=5.0, cause=Cause.SCALE_DOWN, deadline=35.0, waits=True)
    with world.watchers.open(ACME, Kinds(False, True, False)) as watcher:
        world.put(replace(one, state=State.DRAINING, drain=drain, cause=Cause.SCALE_DOWN))
        world.put(one)
        began, ended = (m.instance for m in await drained(watcher))
        assert (began.waits, began.deadline_unix_ms, began.drain_cancelled) == (True, 35_000, False)
        assert (ended.state, ended.deadline_unix_ms, ended.drain_cancelled) == ("running", 0, True)


async def test_a_group_that_comes_and_goes() -> None:
    world = World()
    with world.watchers.open(ACME, ALL) as watcher:
        del world.configuration.groups[WEB]
        world.watchers.on_config_change(cast(Any, None))
        assert [m.group_deleted for m in await drained(watcher)] == ["web"]
        world.configuration.groups[WEB] = world.resolved
        world.watchers.on_config_change(cast(Any, None))
        assert [m.group.key for m in await drained(watcher)] == ["web"]
    world.watchers.on_config_change(cast(Any, None))  # nobody watches


async def test_other_tenants_receive_nothing() -> None:
    one = instance(1)
    world = World(one)
    with world.watchers.open(TenantId("globex"), ALL) as stranger:
        world.put(replace(one, suspect=True), Reason(ReasonCode.SUSPECT, "silent", one.id))
        assert (stranger.snapshot, await drained(stranger)) == ([], [])


async def test_too_much_is_an_end_and_not_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "MAX_QUEUED_MESSAGES", 3)
    world = World()
    with world.watchers.open(ACME, Kinds(False, True, False)) as watcher:
        for number in range(4):
            world.put(instance(number))
        with pytest.raises(WatcherOverrunError):
            await watcher.take()
    assert len(world.watchers) == 0


async def test_numbers_have_no_gap() -> None:
    watcher = Watcher(ACME, ALL, [])
    assert [watcher.numbered(WatchMessage(group_deleted="x")).sequence for _ in range(3)] == [1, 2, 3]
