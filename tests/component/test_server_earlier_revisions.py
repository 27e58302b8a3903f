"""During a rollout, instances of an earlier revision keep the checks and files of that revision."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from component.whole_server import Json, LightAgent, Running, World, config, ready, states
from nstance.model.ids import GroupKey, GroupName, InstanceId, TenantId
from nstance.model.rollout import Outcome
from nstance.objects import errors
from nstance.objects.memory import Fate, Verb
from nstance.server.waits import Waits
from nstance.v1 import operator_pb2
from support.eventually import eventually

KEY = GroupKey(TenantId("acme"), GroupName("web"))
OLD: Json = {"old": {"kind": "tcp", "port": 80}}
NEW: Json = {"new": {"kind": "tcp", "port": 8080}}  # of a service that only the new image has
TOKEN: Json = {"token": {"kind": "storage", "source": "data/token"}}
MOTD: Json = {"motd": {"kind": "string", "template": "{{ .Vars.greeting }}"}}


def configuration(
    *,
    type: str = "small",
    checks: Json = OLD,
    files: Json = MOTD,
    greeting: str = "hello",
    ready_timeout: str = "60s",
    **update: Any,
) -> Json:
    group = {"template": "web", "size": 3, "drain_timeout": "0", "update": update or {"max_surge": 1}}
    made = config(groups={"acme": {"web": group}}, health={"suspect_after": "3s", "dead_after": "60s"})
    made["templates"]["web"] |= {
        "instance_type": type,
        "args": {"image": type},
        "checks": checks,
        "files": files,
        "ready_timeout": ready_timeout,
        "vars": {"greeting": greeting},
    }
    return made


CANARY = {"max_surge": 1, "canary": 1}
SOON: Any = {"ready_timeout": "1s"}  # for rollouts that halt


async def outcome(world: World, wanted: Outcome, *, revisions: int) -> None:
    def reached() -> bool:
        record = world.leader.shard.group_records.get(KEY)
        return record is not None and len(record.revisions) == revisions and record.revisions[-1].outcome is wanted

    await eventually(reached)


async def change(world: World, made: Json) -> None:
    world.configure(made)
    await world.leader.active_config.refresh()


def types(world: World) -> Counter[str]:
    return Counter(m.instance_type for m in world.leader.shard.members(KEY).values() if m.counts)


def of_type(world: World, type: str) -> list[LightAgent]:
    members = world.leader.shard.members(KEY).values()
    return [world.agents[m.id] for m in members if m.counts and m.instance_type == type and m.id in world.agents]


def check_names(agents: list[LightAgent]) -> set[tuple[str, ...]]:
    return {tuple(check.name for check in agent.checks.checks) for agent in agents}


def reported(world: World, agents: list[LightAgent]) -> bool:
    """Whether all of them reported to this leader that they are ready."""
    facts = world.leader.shard.facts
    return all(agent.id in facts and facts[agent.id].agent.ready for agent in agents)


@pytest.fixture(autouse=True)
def images(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check fails on the image that does not have its service."""
    born = LightAgent.__init__

    def boot(self: LightAgent, *args: Any) -> None:
        born(self, *args)
        missing = "old" if self._request.instance_type == "large" else "new"
        self.failing[missing] = "connection refused"

    monkeypatch.setattr(LightAgent, "__init__", boot)


class LeastReady:
    """The fewest ready instances at any time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.found = ready(world, "web", "acme")
        world.leader.lead_now.readiness.subscribe(self._look)

    def _look(self, id: InstanceId) -> None:
        self.found = min(self.found, ready(self._world, "web", "acme"))


async def test_a_new_image_with_its_new_check_never_costs_a_ready_instance(tmp_path: Path) -> None:
    async with World(tmp_path, configuration()) as world:
        await world.start()
        await outcome(world, Outcome.COMPLETE, revisions=1)
        least = LeastReady(world)
        await change(world, configuration(type="large", checks=NEW))
        assert ready(world, "web", "acme") == 3
        await outcome(world, Outcome.COMPLETE, revisions=2)
        assert types(world) == {"large": 3}
        assert check_names(of_type(world, "large")) == {("new",)}
        assert least.found == 3


async def test_a_missing_secret_of_a_new_revision_does_not_touch_the_old_instances(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(**SOON)) as world:
        await world.start()
        operator = await world.operator("acme")
        await outcome(world, Outcome.COMPLETE, revisions=1)
        least = LeastReady(world)
        await change(world, configuration(type="large", checks=NEW, files=MOTD | TOKEN, **SOON))
        await outcome(world, Outcome.HALTED, revisions=2)
        assert least.found == 3
        shown = (await operator.call("ListInstances", group="web")).instances
        assert [i.ready for i in shown if i.instance_type == "small"] == [True] * 3
        assert [i.not_ready for i in shown if i.instance_type == "large"] != [""]
        assert [agent.files for agent in of_type(world, "small")] == [{"motd": b"hello"}] * 3
        # They stay what they were after a rollback, too.
        await operator.call("RollbackGroup", key="web")
        await outcome(world, Outcome.COMPLETE, revisions=3)
        assert least.found == 3


async def test_a_change_without_a_new_revision_reaches_all_instances(tmp_path: Path) -> None:
    async with World(tmp_path, configuration()) as world:
        await world.start()
        await outcome(world, Outcome.COMPLETE, revisions=1)
        before = states(world, "web", "acme")
        await change(world, configuration(checks=OLD | {"more": {"kind": "tcp", "port": 1}}, greeting="hi"))
        agents = of_type(world, "small")
        await eventually(lambda: check_names(agents) == {("more", "old")})
        await eventually(lambda: all(agent.files == {"motd": b"hi"} for agent in agents))
        await eventually(lambda: ready(world, "web", "acme") == 3)
        assert states(world, "web", "acme") == before


async def pause(world: World) -> None:
    """One canary of the new revision, and two of the old one."""
    await outcome(world, Outcome.COMPLETE, revisions=1)
    await change(world, configuration(type="large", checks=NEW, files=MOTD | TOKEN, greeting="hi", **CANARY))
    await outcome(world, Outcome.PAUSED, revisions=2)
    assert types(world) == {"small": 2, "large": 1}


async def fail_over(world: World, first: Running) -> Running:
    """Agents return without what they had: the new leader sends it again."""
    for agent in world.agents.values():
        agent.mute()
        agent.config_hash, agent.files, agent.checks.hash = "", {}, ""
        del agent.checks.checks[:]
    await first.stop()
    second = await world.start("b")
    for agent in world.agents.values():
        agent.speak()
    return second


async def test_a_new_leader_leaves_the_old_instances_their_checks_and_files(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(**CANARY)) as world:
        world.store.tamper("data/token", b"s3cret")
        first = await world.start("a")
        await pause(world)
        await fail_over(world, first)
        old, new = of_type(world, "small"), of_type(world, "large")
        await eventually(lambda: check_names(old) == {("old",)} and check_names(new) == {("new",)})
        await eventually(lambda: all(agent.files == {"motd": b"hello"} for agent in old))
        await eventually(lambda: [agent.files for agent in new] == [{"motd": b"hi", "token": b"s3cret"}])
        await eventually(lambda: reported(world, [*old, *new]))
        # What the API changes without a new revision reaches the canary; the old instances get it when they are replaced.
        operator = await world.operator("acme")
        vars = operator_pb2.GroupConfig(vars={"greeting": "hey"})
        await operator.call("UpsertGroup", key="web", config=vars)
        await eventually(lambda: new[0].files["motd"] == b"hey")
        assert [agent.files["motd"] for agent in old] == [b"hello"] * 2


async def test_a_new_leader_says_nothing_of_instances_whose_revision_it_has_not_read(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(**CANARY)) as world:
        world.waits = Waits(revision_retry=0.02)
        world.store.tamper("data/token", b"s3cret")
        first = await world.start("a")
        await pause(world)
        reads = 0

        def fate(verb: Verb, key: str) -> Fate:
            nonlocal reads
            if verb == "get" and "/revision/" in key:
                reads += 1
                return Fate(error=errors.UnavailableError("storage is away"))
            return Fate()

        world.fate = fate
        second = await fail_over(world, first)
        old, new = of_type(world, "small"), of_type(world, "large")
        await eventually(lambda: reported(world, new))
        await eventually(lambda: reads > 3 and all(agent.connected for agent in old))
        assert check_names(old) == {()}
        assert [agent.files for agent in old] == [{}, {}]
        assert ready(world, "web", "acme") == 3  # as the journal has it
        assert not any(second.shard.facts[agent.id].agent.not_ready for agent in old)
        world.fate = lambda verb, key: Fate()
        await eventually(lambda: check_names(old) == {("old",)})
        await eventually(lambda: reported(world, old))


async def test_an_instance_that_was_never_ready_is_not_late_while_its_revision_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(tmp_path, configuration(**CANARY)) as world:
        world.waits = Waits(revision_retry=0.02)
        world.store.tamper("data/token", b"s3cret")
        first = await world.start("a")
        await pause(world)
        with monkeypatch.context() as failing:
            failing.setattr(LightAgent, "report", lambda agent: None)
            replaced = of_type(world, "small")[0]
            world.cloud.stop(replaced.id)
            await eventually(lambda: replaced not in of_type(world, "small") and len(of_type(world, "small")) == 2)
            late = of_type(world, "small")[-1]
            facts = world.leader.shard.facts
            await eventually(lambda: late.id in facts and facts[late.id].agent.connected)
        assert world.leader.shard.instances[late.id].ready_at is None
        away = Fate(error=errors.UnavailableError("storage is away"))
        world.fate = lambda verb, key: away if verb == "get" and "/revision/" in key else Fate()
        shard = (await fail_over(world, first)).shard
        await eventually(lambda: late.id in shard.facts and bool(shard.facts[late.id].agent.blocked))
        assert not shard.facts[late.id].agent.not_ready
        world.fate = lambda verb, key: Fate()
        await eventually(lambda: reported(world, [late]))
        assert not shard.facts[late.id].agent.blocked


async def test_instances_of_a_revision_that_is_lost_get_what_the_group_has_now(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(**CANARY)) as world:
        world.store.tamper("data/token", b"s3cret")
        first = await world.start("a")
        await pause(world)
        for key in [key for key in world.store.contents() if "/revision/" in key]:
            await world.store.delete(key)
        await fail_over(world, first)
        old = of_type(world, "small")
        await eventually(lambda: check_names(old) == {("new",)})
        operator = await world.operator("acme")
        messages = [e.message for e in (await operator.call("ListEvents", group="web", limit=100)).events]
        [found] = [m for m in messages if m.startswith("failed to read revision")]
        assert "its instances get the files and checks of the current revision" in found


async def test_a_revision_is_stored_even_if_the_next_one_comes_before_that(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(**CANARY)) as world:
        world.waits = Waits(revision_retry=0.02)
        world.store.tamper("data/token", b"s3cret")
        first = await world.start("a")
        await outcome(world, Outcome.COMPLETE, revisions=1)
        lead = first.lead_now
        await eventually(lambda: all(map(lead.revisions.is_stored, lead.configuration.groups)))

        def refuse(verb: Verb, key: str) -> Fate:
            away = verb == "create" and "/revision/" in key
            return Fate(error=errors.UnavailableError("storage is away")) if away else Fate()

        world.fate = refuse
        await change(world, configuration(greeting="bye", **CANARY))
        await eventually(lambda: all(agent.files == {"motd": b"bye"} for agent in of_type(world, "small")))
        await change(world, configuration(type="large", checks=NEW, greeting="hi", **CANARY))
        world.fate = lambda verb, key: Fate()
        await outcome(world, Outcome.PAUSED, revisions=2)
        await fail_over(world, first)
        old = of_type(world, "small")
        await eventually(lambda: all(agent.files == {"motd": b"bye"} for agent in old))


@pytest.mark.parametrize("files", [MOTD, MOTD | TOKEN], ids=["paused", "halted"])
async def test_a_dead_old_instance_is_made_again_as_it_was_while_the_rollout_is_held(
    tmp_path: Path, files: Json
) -> None:
    update = CANARY if files == MOTD else {"max_surge": 1, **SOON}
    async with World(tmp_path, configuration(**update)) as world:
        await world.start()
        operator = await world.operator("acme")
        await outcome(world, Outcome.COMPLETE, revisions=1)
        await change(world, configuration(type="large", checks=NEW, files=files, **update))
        await outcome(world, Outcome.PAUSED if files == MOTD else Outcome.HALTED, revisions=2)
        before = types(world)
        replaced = {member.replaces for member in world.leader.shard.members(KEY).values()}
        dead = next(agent.id for agent in of_type(world, "small") if agent.id not in replaced)
        world.cloud.stop(dead)
        await eventually(lambda: not world.leader.shard.instances[dead].counts)
        await eventually(lambda: types(world) == before and ready(world, "web", "acme") == 3)
        assert check_names(of_type(world, "small")) == {("old",)}
        assert {agent._request.args["image"] for agent in of_type(world, "small")} == {"small"}
        messages = [e.message for e in (await operator.call("ListEvents", group="web", limit=100)).events]
        state = "paused" if files == MOTD else "halted"
        assert any(f"replacing {dead}: gone; made from revision" in m and m.endswith(f"is {state}") for m in messages)


async def test_a_new_leader_makes_a_dead_old_instance_again_as_it_was(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(**CANARY)) as world:
        world.store.tamper("data/token", b"s3cret")
        first = await world.start("a")
        await pause(world)
        dead = of_type(world, "small")[0].id
        await first.stop()
        world.cloud.stop(dead)
        await world.start("b")
        await eventually(lambda: not world.leader.shard.instances[dead].counts and types(world)["small"] == 2)
        await eventually(lambda: reported(world, of_type(world, "small")))
        assert types(world) == {"small": 2, "large": 1}
        assert check_names(of_type(world, "small")) == {("old",)}


async def test_a_replacement_without_files_does_not_keep_the_place_of_a_dead_instance(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(**SOON)) as world:
        await world.start()
        await outcome(world, Outcome.COMPLETE, revisions=1)
        await change(world, configuration(type="large", files=MOTD | TOKEN, **SOON))
        await outcome(world, Outcome.HALTED, revisions=2)
        [dead] = {member.replaces for member in world.leader.shard.members(KEY).values() if member.replaces}
        world.cloud.stop(dead)
        await eventually(lambda: types(world) == {"small": 3} and ready(world, "web", "acme") == 3)
