"""The story that `make dev` tells of an old bucket: what is dead is not called running, and nobody of then leads now."""

import io
import json
from pathlib import Path

import pytest

from nstance.clock import SystemClock
from nstance.config import storage_keys
from nstance.dev import leftovers
from nstance.dev.screen import Screen
from nstance.dev.story import Story
from nstance.model.ids import DEFAULT_TENANT, GroupName, InstanceId, ShardId
from nstance.model.instance import Instance, Put, State
from nstance.objects import lease, slots
from nstance.objects.memory import MemoryStore
from nstance.providers import processes

SHARD = ShardId("dev")
CONFIG = {
    "cluster": {"id": "demo"},
    "shard": {"infra": {"provider": "process"}},
    "templates": {"web": {"kind": "web"}},
    "groups": {"default": {"web": {"template": "web", "size": 2}}},
}


def held(epoch: int) -> bytes:
    return lease.encode(
        lease.Lease(
            epoch=epoch,
            sequence=1,
            op="0",
            holder=lease.Holder(server=f"server-{epoch}", incarnation="x"),
            free=False,
            length=15.0,
            promise=2.0,
            at=SystemClock().wall() + 5.0,
        )
    )


async def test_the_dead_of_an_old_bucket_do_not_run_and_its_leader_does_not_lead(tmp_path: Path) -> None:
    clock, out = SystemClock(), io.StringIO()
    store = MemoryStore(clock)
    store.tamper(storage_keys.config(SHARD), json.dumps(CONFIG).encode())
    store.tamper(storage_keys.lease(SHARD), held(3))
    dead = [
        Instance(
            id=InstanceId(f"web-01m7fkx6f4ep28abba93ypra{letter}j"),
            tenant=DEFAULT_TENANT,
            group=GroupName("web"),
            state=State.RUNNING,
            created=1.0,
        )
        for letter in "ab"
    ]
    entry = slots.encode_entry(slots.Entry(id="1-1", changes=tuple(map(Put, dead))))
    slot = slots.encode_slot(number=1, epoch=3, op="0", at=1.0, entries=[entry])
    store.tamper(storage_keys.journal(SHARD, 1), slot)
    story = Story(store, SHARD, instances=tmp_path, screen=Screen(out, clock, timed=False), clock=clock)
    assert await story.open() == 2
    await story.look()
    assert "group web: 0 of 2 running" in out.getvalue()
    assert not story.leader
    store.tamper(storage_keys.lease(SHARD), held(4))
    await story.look()
    assert story.leader == "server-4"
    assert not story.whole()


async def test_a_group_is_whole_when_its_agents_are_connected_and_have_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a Python whose agents register and then fail: the records looked fine."""
    clock = SystemClock()
    store = MemoryStore(clock)
    files = {"motd": {"kind": "string", "template": "hello"}, "a.env": {"kind": "env", "template": {"A": "1"}}}
    config = CONFIG | {"templates": {"web": {"kind": "web", "files": files}}}
    store.tamper(storage_keys.config(SHARD), json.dumps(config).encode())
    members = [
        Instance(
            id=InstanceId(f"web-01m7fkx6f4ep28abba93ypra{letter}j"),
            tenant=DEFAULT_TENANT,
            group=GroupName("web"),
            state=State.RUNNING,
            created=1.0,
        )
        for letter in "ab"
    ]
    entry = slots.encode_entry(slots.Entry(id="1-1", changes=tuple(map(Put, members))))
    store.tamper(storage_keys.journal(SHARD, 1), slots.encode_slot(number=1, epoch=1, op="0", at=1.0, entries=[entry]))
    story = Story(store, SHARD, instances=tmp_path, screen=Screen(io.StringIO(), clock), clock=clock)
    await story.open()
    store.tamper(storage_keys.lease(SHARD), held(1))
    process = processes.Process(1, "1")
    monkeypatch.setattr(leftovers, "agents", lambda _: [(each.id, process) for each in members[:1]])
    await story.look()
    assert story.lacks() == "group web has 1 of 2 instances with a running agent"
    monkeypatch.setattr(leftovers, "agents", lambda _: [(each.id, process) for each in members])
    await story.look()
    assert story.lacks() == "0 of 2 agents are connected to the leader"
    story.connected = 2
    assert story.lacks().startswith(f"{members[0].id} has not installed a.env, motd; see agent.log")
    for each in members:
        folder = tmp_path / each.id / "recv"
        folder.mkdir(parents=True)
        (folder / "motd").touch()
    assert "has not installed a.env;" in story.lacks()
    for each in members:
        (tmp_path / each.id / "recv" / "a.env").touch()
    assert story.whole()
