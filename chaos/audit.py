"""The verdict of a run: the shard is at rest, every VM is accounted for, every process behaved."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from chaos import journal
from chaos.watch import Watch
from chaos.world import SHARD, World
from nstance.config import storage_keys
from nstance.model.instance import State
from nstance.objects.port import Key

OPEN = frozenset({State.PENDING, State.STARTING, State.DRAINING, State.DELETING})
REST_SECONDS = 5.0  # for which a shard at rest must stay at rest
SERVER_KILOBYTES = 160_000
AGENT_KILOBYTES = 300  # of a server, per agent
SERVER_DESCRIPTORS = 200
MAX_SHOWN = 12  # problems of one kind


@dataclass(frozen=True, slots=True)
class Verdict:
    problems: list[str]
    settled: float | None  # seconds from the last repair to rest
    causes: Counter[str]  # why instances left
    slots: int
    epochs: int
    certificates: int
    most_kilobytes: int
    made: int


def settle_within(agents: int) -> float:
    """Seconds to replace what is missing: a lost VM costs about half a second of processor time, twice."""
    return 90.0 + agents * 0.6


async def judge(world: World, watch: Watch, fault_problems: list[str]) -> Verdict:
    """Wait for rest, check that it lasts, and audit everything. `fault_problems`: found while faults were active."""
    problems = list(fault_problems)
    began = time.monotonic()
    within = settle_within(world.agents)
    settled: float | None = None
    while settled is None and time.monotonic() - began < within:
        if not await unrest(world, watch):
            settled = time.monotonic() - began
        else:
            await asyncio.sleep(1.0)
    if settled is None:
        problems.append(f"I4: no rest {within:.0f} s after the faults stopped: {await unrest(world, watch)}")
    else:
        before = sorted(world.vms.ids())
        await asyncio.sleep(REST_SECONDS)
        if sorted(world.vms.ids()) != before:
            problems.append("I4: VMs are created or deleted although everything was at rest")
    world.vms.look()
    replay = journal.Replay(world)
    await replay.run()
    problems += [*watch.problems, *replay.problems, *_logs(world), *_resources(world, watch)]
    certificates, wrong = await _certificates(world, replay)
    problems += wrong
    return Verdict(
        problems=list(_shorten(problems)),
        settled=settled,
        causes=replay.causes,
        slots=replay.tail,
        epochs=len(replay.fences),
        certificates=certificates,
        most_kilobytes=watch.most_kilobytes,
        made=len(world.vms.seen),
    )


async def unrest(world: World, watch: Watch) -> str:
    """What keeps the shard from rest; empty if nothing does."""
    sample = watch.samples[-1]
    if len(sample.servers) != len(world.servers):
        return f"only {sorted(sample.servers)} answer"
    leading = [name for name, server in sample.servers.items() if server.leads]
    if len(leading) != 1:
        return f"{len(leading)} servers lead"
    connected = sample.servers[leading[0]].connected
    if connected != world.agents:
        return f"{connected} of {world.agents} agents are connected"
    records = await journal.read_records(world)
    for group, size in world.sizes.items():
        counting = [m for m in records.values() if m.group == group and m.counts]
        if len(counting) != size:
            return f"{group} has {len(counting)} of {size}"
    for record in records.values():
        if record.state in OPEN or (record.suspect and record.counts):
            return f"{record.id} is {record.state.value}, suspect: {record.suspect}"
    return _compare_vms({str(id) for id, record in records.items() if record.state is State.RUNNING}, world)


def _compare_vms(expected: set[str], world: World) -> str:
    running, there = set(world.vms.running()), set(world.vms.ids())
    if lost := expected - running:
        return f"{len(lost)} VMs are lost, {min(lost)} among them"
    if leaked := there - expected:
        return f"{len(leaked)} VMs are leaked, {min(leaked)} among them"
    return ""


async def _certificates(world: World, replay: journal.Replay) -> tuple[int, list[str]]:
    """I7: only known instances have certificates, and each key belongs to one instance."""
    problems, owners = [], dict[str, str]()
    store = world.store()
    count = 0
    try:
        async for key in store.list(storage_keys.certlog_prefix(SHARD)):
            raw = json.loads((await store.get(Key(key))).body)
            for certificate in raw["certificates"]:
                count += 1
                owner = owners.setdefault(certificate["key_sha256"], raw["instance"])
                if owner != raw["instance"]:
                    problems.append(f"I7: {owner} and {raw['instance']} have certificates for one key")
            if raw["instance"] not in replay.intents:
                problems.append(f"I7: certificates were issued to {raw['instance']}, which has no intent")
    finally:
        await store.close()
    return count, problems


def _logs(world: World) -> Iterator[str]:
    for child in world.servers.values():
        for life in child.lives:
            for record in journal.records(life.log.read_text(errors="replace")):
                if "level" not in record:
                    if "Traceback" in record["message"] or "Error" in record["message"]:
                        yield f"{life.name} wrote outside of its log: {record['message'][:200]}"
                elif "traceback" in record:
                    last = str(record["traceback"]).strip().splitlines()[-1]
                    yield f"{life.name} logged a traceback: {record['message']}: {last[:200]}"
    for id in world.vms.ids():
        path = world.vms.root / id / "agent.log"
        if path.exists() and "Traceback" in (text := path.read_text(errors="replace")):
            yield f"the agent of {id} logged a traceback: {text.strip().splitlines()[-1][:200]}"


def _resources(world: World, watch: Watch) -> Iterator[str]:
    most = SERVER_KILOBYTES + AGENT_KILOBYTES * world.agents
    if watch.most_kilobytes > most:
        yield f"I9: a server had {watch.most_kilobytes >> 10} MB, expected at most {most >> 10}"
    for name, child in world.servers.items():
        if (count := child.descriptors()) > SERVER_DESCRIPTORS + 2 * world.agents:
            yield f"I9: {name} has {count} open files and connections"


def _shorten(problems: list[str]) -> Iterator[str]:
    """At most a few problems of each kind."""
    kinds = Counter[str]()
    for problem in problems:
        kind = " ".join(word for word in problem.split() if not any(c.isdigit() for c in word))
        kinds[kind] += 1
        if kinds[kind] <= MAX_SHOWN:
            yield problem
    for kind, count in kinds.items():
        if count > MAX_SHOWN:
            yield f"… and {count - MAX_SHOWN} more like: {kind}"
