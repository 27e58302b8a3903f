"""What `make dev` prints for the bucket of an earlier run: dead instances do not run, its leader does not lead."""

import io
import json
from pathlib import Path

import pytest

from nstance.clock import SystemClock
from nstance.config import storage_keys
from nstance.dev import leftovers
from nstance.dev.screen import Screen
from nstance.dev.shard_observer import ShardObserver
from nstance.model.ids import DEFAULT_TENANT, GroupName, InstanceId, ShardId
from nstance.model.instance import Instance, Put, State
from nstance.objects import lease, slots
from nstance.objects.memory import MemoryStore
from nstance.providers import processes
from support.journals import slot_body, slot_key

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
    slot = slot_body(number=1, epoch=3, op="0", at=1.0, entries=[entry])
    store.tamper(slot_key(SHARD, 1), slot)
    observer = ShardObserver(store, SHARD, instances=tmp_path, screen=Screen(out, clock, timed=False), clock=clock)
    assert await observer.load() == 2
    await observer.poll()
    assert "group web: 0 of 2 instances running" in out.getvalue()
    assert not observer.leader
    store.tamper(storage_keys.lease(SHARD), held(4))
    await observer.poll()
    assert observer.leader == "server-4"
    assert not observer.is_healthy()


async def test_a_shard_is_healthy_when_its_agents_are_connected_and_have_their_files(
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
    store.tamper(slot_key(SHARD, 1), slot_body(number=1, epoch=1, op="0", at=1.0, entries=[entry]))
    observer = ShardObserver(store, SHARD, instances=tmp_path, screen=Screen(io.StringIO(), clock), clock=clock)
    await observer.load()
    store.tamper(storage_keys.lease(SHARD), held(1))
    process = processes.Process(1, "1")
    monkeypatch.setattr(leftovers, "agents", lambda _: [(each.id, process) for each in members[:1]])
    await observer.poll()
    assert observer.missing() == "group web has 1 of 2 instances with a running agent"
    monkeypatch.setattr(leftovers, "agents", lambda _: [(each.id, process) for each in members])
    await observer.poll()
    assert observer.missing() == "0 of 2 agents are connected to the leader"
    observer.connected = 2
    assert observer.missing().startswith(
        f"{members[0].id} has not installed a.env, motd; see {tmp_path / members[0].id / 'agent.log'}"
    )
    for each in members:
        folder = tmp_path / each.id / "recv"
        folder.mkdir(parents=True)
        (folder / "motd").touch()
    assert "has not installed a.env;" in observer.missing()
    for each in members:
        (tmp_path / each.id / "recv" / "a.env").touch()
    assert observer.is_healthy()
