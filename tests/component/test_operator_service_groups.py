"""Groups through the operator's API: a whole server, real TLS."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status

from component.whole_server import SHARD, Operator, World, config, ready, states
from nstance.config import jsonc
from nstance.model.events import VmState
from nstance.model.ids import GroupKey, GroupName, TenantId
from nstance.objects import errors
from nstance.objects.memory import Fate, Verb
from nstance.providers.errors import PermanentError
from nstance.providers.memory_behavior import Call, Outcome
from nstance.server.api import grpc_ports
from nstance.v1.operator_pb2 import GroupConfig
from support.eventually import eventually

GROUPS = f"shard/{SHARD}/groups.jsonc"
STATIC = {"acme": {"static": {"template": "web", "size": 1}}}


def stored(world: World) -> Any:
    return jsonc.read(world.store.contents()[GROUPS], source="groups", limit=1 << 20).value


def written(world: World) -> Any:
    """Without who set what and when."""
    return {
        tenant: {name: {k: v for k, v in group.items() if k != "set_by"} for name, group in groups.items()}
        for tenant, groups in stored(world).items()
    }


async def test_a_dynamic_group_is_made_scaled_and_deleted(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.start()
        operator = await world.operator("acme")
        made = await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=3))
        assert (made.group.size, made.group.static, made.group.tenant) == (3, False, "acme")
        assert written(world) == {"acme": {"web": {"template": "web", "size": 3}}}
        await eventually(lambda: ready(world, "web", "acme") == 3)
        [shown] = (await operator.call("ListGroups")).groups
        assert (shown.actual_size, shown.ready_size, len(shown.provider_ids)) == (3, 3, 3)
        assert shown.config == GroupConfig(template="web", size=3)
        measured = world.leader.server.metrics.render().decode()
        assert 'nstance_group_size{group="web",tenant="acme"} 3.0' in measured
        assert 'nstance_instances{group="web",state="running",tenant="acme"} 3.0' in measured
        found = await operator.call("ListInstances", group="web")
        assert [i.state for i in found.instances] == ["running"] * 3
        await operator.call("UpsertGroup", key="web", config=GroupConfig(size=1, template="web"), etag=shown.etag)
        stale = await operator.refused("UpsertGroup", key="web", config=GroupConfig(size=9), etag=shown.etag)
        assert stale.status is Status.ABORTED
        assert (await operator.refused("DeleteGroup", key="web", etag=shown.etag)).status is Status.ABORTED
        await operator.call("DeleteGroup", key="web")
        assert (await operator.refused("DeleteGroup", key="web")).status is Status.NOT_FOUND
        assert not (await operator.call("ListGroups")).groups
        assert written(world) == {}
        await eventually(lambda: "running" not in states(world, "web", "acme").values())
        assert "blocked" not in {event.reason for event in (await operator.call("ListEvents")).events}


async def test_a_size_that_is_left_out_stays_as_it_is(tmp_path: Path) -> None:
    """Nobody scales a group to 0 by omission."""
    async with World(tmp_path, agents=False) as world:
        await world.start()
        operator = await world.operator("acme")
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=2))
        changed = await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", vars={"a": "b"}))
        assert (changed.group.size, changed.group.vars["a"]) == (2, "b")
        zero = await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=0))
        assert zero.group.size == 0


async def test_a_static_group_takes_only_size_instance_type_vars_and_pausing(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC), agents=False) as world:
        await world.start()
        operator = await world.operator("acme")
        desired = GroupConfig(template="web", size=2, instance_type="large", vars={"greeting": "hi"})
        changed = (await operator.call("UpsertGroup", key="static", config=desired)).group
        assert (changed.size, changed.instance_type, changed.vars["greeting"]) == (2, "large", "hi")
        assert (await operator.call("PauseGroup", key="static")).groups[0].paused
        refusals = {
            "template": GroupConfig(template="other", size=2),
            "subnet_pool": GroupConfig(subnet_pool="elsewhere"),
            "drain_timeout": GroupConfig(drain_timeout="1s"),
            "load_balancers": GroupConfig(load_balancers=["front"]),
            "update": GroupConfig(update_set=True, max_surge=3),
            "args_json": GroupConfig(args_json='{"A": 1}'),
        }
        for field, wrong in refusals.items():
            refused = await operator.refused("UpsertGroup", key="static", config=wrong)
            assert refused.status is Status.FAILED_PRECONDITION
            assert f"config.{field}" in (refused.message or "")
        assert (await operator.refused("DeleteGroup", key="static")).status is Status.FAILED_PRECONDITION
        assert written(world) == {
            "acme": {"static": {"size": 2, "instance_type": "large", "vars": {"greeting": "hi"}, "paused": True}}
        }


WRONG = [
    ("size", GroupConfig(template="web", size=-1)),
    ("size", GroupConfig(template="web", size=2**31 - 1)),
    ("template", GroupConfig(template="wob", size=1)),
    ("template", GroupConfig(size=1)),
    ("subnet_pool", GroupConfig(template="web", subnet_pool="nowhere")),
    ("drain_timeout", GroupConfig(template="web", drain_timeout="soon")),
    ("vars", GroupConfig(template="web", vars={"a b": "c"})),
    ("vars", GroupConfig(template="web", vars={"a": "x" * (1 << 20)})),
    ("load_balancers", GroupConfig(template="web", load_balancers=["nobody"])),
    ("update", GroupConfig(template="web", update_set=True)),
    ("args_json", GroupConfig(template="web", args_json="{")),
    ("args", GroupConfig(template="web", args_json="[]")),
    ("args_json", GroupConfig(template="web", args_json='{"a": NaN}')),
]


async def test_wrong_values_are_refused_with_their_field_and_change_nothing(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        operator = await world.operator("acme")
        for field, wrong in WRONG:
            for rpc in ("UpsertGroup", "PlanGroup"):
                refused = await operator.refused(rpc, key="web", config=wrong)
                assert refused.status is Status.INVALID_ARGUMENT, (field, refused)
                assert f"config.{field}" in (refused.message or ""), (field, refused)
        for key in ("", "../globex", "UPPER", "*", "a--b", "acme/web", "x" * 33):
            refused = await operator.refused("UpsertGroup", key=key, config=GroupConfig(template="web"))
            assert (refused.status, (refused.message or "")[:4]) == (Status.INVALID_ARGUMENT, "key:")
        assert GROUPS not in world.store.contents()


async def test_dry_runs_and_plans_show_the_decision_and_change_nothing(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.start()
        operator = await world.drainer("acme")
        desired = GroupConfig(template="web", size=2)
        rehearsed = await operator.call("UpsertGroup", key="web", config=desired, dry_run=True)
        assert [(a.action, a.instance_id, a.reason) for a in rehearsed.plan] == [("create", "", "scale-up")] * 2
        assert rehearsed.group.size == 2
        assert GROUPS not in world.store.contents()
        assert not (await operator.call("ListGroups")).groups

        await operator.call("UpsertGroup", key="web", config=desired)
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * 2)
        before = world.store.contents()[GROUPS]
        assert not (await operator.call("PlanGroup", key="web")).actions

        async def planned(config: GroupConfig) -> list[tuple[str, str]]:
            actions = (await operator.call("PlanGroup", key="web", config=config)).actions
            assert all(action.message for action in actions)
            return [(action.action, action.reason) for action in actions]

        assert await planned(GroupConfig(template="web", vars={"greeting": "hi"})) == [("push-files", "config")] * 2
        drift = [("create", "replace"), ("drain", "config-drift"), ("drain", "config-drift")]
        assert await planned(GroupConfig(template="web", instance_type="large")) == drift
        assert await planned(GroupConfig(template="web", size=0)) == [("drain", "scale-down")] * 2
        gone = await operator.call("DeleteGroup", key="web", dry_run=True)
        assert [action.action for action in gone.plan] == ["drain", "drain"]
        paused = await operator.call("PauseGroup", dry_run=True)
        assert [group.paused for group in paused.groups] == [True]
        assert world.store.contents()[GROUPS] == before
        assert list(states(world, "web", "acme").values()) == ["running"] * 2


async def test_a_plan_says_what_is_missing_and_why_it_is_not_made_yet(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        operator = await world.operator("acme")
        world.behavior.then(Call.CREATE, *[Outcome(applied=False, error=PermanentError("the quota is used up"))] * 4)
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=2))
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["failed"] * 4)
        plan = (await operator.call("PlanGroup", key="web")).actions
        assert [(a.action, a.reason) for a in plan] == [("create", "back-off")] * 2
        assert "2 failed attempts in a row" in plan[0].message
        assert "the quota is used up" in plan[0].message
        mended = await operator.call("PlanGroup", key="web", config=GroupConfig(template="web", instance_type="large"))
        assert [(a.action, a.reason) for a in mended.actions] == [("create", "scale-up")] * 2


async def test_a_paused_tenant_stands_still_until_it_is_resumed(tmp_path: Path) -> None:
    configured = config(
        groups={"acme": {"one": {"template": "web", "size": 1}}, "globex": {"one": {"template": "web"}}}
    )
    async with World(tmp_path, configured) as world:
        await world.start()
        operator = await world.operator("acme")
        await operator.call("UpsertGroup", key="two", config=GroupConfig(template="web", size=1))
        await eventually(lambda: [*states(world, "one", "acme").values(), *states(world, "two", "acme").values()]
                         == ["running"] * 2)  # fmt: skip
        paused = (await operator.call("PauseGroup")).groups
        assert [(group.key, group.paused) for group in paused] == [("one", True), ("two", True)]
        assert list(written(world)) == ["acme"]
        old = next(iter(states(world, "one", "acme")))
        world.cloud.stop(old)
        facts = world.leader.shard.facts
        await eventually(lambda: facts[old].vm.state is VmState.DOWN)
        shown = (await operator.call("ListGroups")).groups[0]
        assert (shown.key, shown.actual_size, shown.ready_size) == ("one", 1, 0)  # whatever its record says
        await operator.call("UpsertGroup", key="two", config=GroupConfig(template="web", size=5))
        assert (await operator.refused("DeleteGroup", key="two")).status is Status.FAILED_PRECONDITION
        refused = await operator.refused("DeleteInstance", instance_id=next(iter(states(world, "two", "acme"))))
        assert refused.status is Status.FAILED_PRECONDITION
        assert len(world.leader.shard.instances) == 2
        resumed = (await operator.call("ResumeGroup")).groups
        assert [group.paused for group in resumed] == [False, False]
        await eventually(lambda: list(states(world, "two", "acme").values()) == ["running"] * 5)
        await eventually(lambda: "running" in [s for id, s in states(world, "one", "acme").items() if id != old])
        assert written(world) == {"acme": {"two": {"template": "web", "size": 5}}}


async def test_a_write_whose_answer_is_lost_is_recognised(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        operator = await world.operator("acme")
        lost = 0

        def fate(verb: Verb, key: str) -> Fate:
            nonlocal lost
            if key == GROUPS and verb in (Verb.CREATE, Verb.REPLACE):
                lost += 1
                return Fate(lost=True)
            return Fate()

        world.fate = fate
        for size in (1, 2):
            made = await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=size))
            assert made.group.size == size
        assert lost == 2
        assert written(world) == {"acme": {"web": {"template": "web", "size": 2}}}
        assert world.leader.active_config.configuration.groups == world.leader.lead_now.configuration.groups


async def test_a_change_that_cannot_be_stored_is_not_made(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        operator = await world.operator("acme")

        def fate(verb: Verb, key: str) -> Fate:
            return Fate(error=errors.UnavailableError("no")) if key == GROUPS and verb is not Verb.GET else Fate()

        world.fate = fate
        refused = await operator.refused("UpsertGroup", key="web", config=GroupConfig(template="web", size=1))
        assert refused.status is Status.UNAVAILABLE
        assert not (await operator.call("ListGroups")).groups
        assert not world.leader.shard.instances


async def test_an_edit_by_hand_at_the_same_time_is_kept(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        operator = await world.operator("acme")
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=1))
        by_hand = {"acme": {"web": {"template": "web", "size": 1}, "hand": {"template": "web", "size": 2}}}

        def fate(verb: Verb, key: str) -> Fate:
            if key == GROUPS and verb is Verb.REPLACE and by_hand:
                world.store.tamper(GROUPS, b"// mine\n" + json.dumps(by_hand).encode())
                by_hand.clear()
            return Fate()

        world.fate = fate
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=3))
        assert {key: group["size"] for key, group in written(world)["acme"].items()} == {"web": 3, "hand": 2}
        assert [group.key for group in (await operator.call("ListGroups")).groups] == ["hand", "web"]


async def test_an_event_names_only_the_caller_of_its_change(tmp_path: Path) -> None:
    """A person's edits of the file are recorded without a name, and nobody's under another caller's."""
    async with World(tmp_path, agents=False) as world:
        await world.start()
        acme, globex = await world.operator("acme"), await world.operator("globex")
        await acme.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=1))
        by_hand = {"web": {"template": "web", "size": 2}, "hand": {"template": "web", "size": 2}}
        world.store.tamper(GROUPS, json.dumps({"acme": by_hand}).encode())
        grown = GroupConfig(template="web", size=3)
        await asyncio.gather(*(operator.call("UpsertGroup", key="web", config=grown) for operator in (acme, globex)))

        async def changes(operator: Operator) -> list[tuple[str, str]]:
            return [(e.group, e.message) for e in (await operator.call("ListEvents")).events if e.reason == "config"]

        one, other = acme.identity.id, globex.identity.id
        assert await changes(acme) == [
            ("web", f"group created with size 1 (by {one})"),
            ("hand", "group created with size 2"),
            ("web", "size 1 → 2"),
            ("web", f"size 2 → 3 (by {one})"),
        ]
        assert await changes(globex) == [("web", f"group created with size 3 (by {other})")]


async def test_a_file_that_is_no_json_is_named_and_its_place(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        world.store.tamper(GROUPS, b'{"globex": \n  secret-plan}')
        [error] = (await (await world.operator()).call("RefreshConfig")).errors
        assert error.startswith(f"{GROUPS} (line 2, column 3): expected ")
        [hidden] = (await (await world.operator("acme")).call("GetConfigStatus")).errors
        assert hidden == "and 1 problems in groups of other tenants"


async def test_an_invalid_file_is_reported_without_its_content(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        operator = await world.operator("acme")
        world.store.tamper(GROUPS, b'{"globex": {"secret-plan": {"template": "nope"}}}')
        refused = await operator.refused("UpsertGroup", key="web", config=GroupConfig(template="web"))
        assert refused.status is Status.FAILED_PRECONDITION
        answer = await operator.call("RefreshConfig")
        assert not answer.updated
        assert "other tenants" in answer.errors[0]
        assert "secret-plan" not in f"{refused} {answer}"
        owner = await world.operator("globex")
        assert "secret-plan" in "".join((await owner.call("GetConfigStatus")).errors)


async def test_a_file_of_groups_that_vanishes_deletes_nobody(tmp_path: Path) -> None:
    """A mistake or a lifecycle rule removed the file. A lost file deletes no group, nor does a file without it: the
    group is held until somebody deletes it by name."""
    async with World(tmp_path) as world:
        first = await world.start("a")
        second = await world.start("b", lead=False)
        operator, other = await world.operator("acme"), await world.operator()
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=2))
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * 2)
        made = dict(states(world, "web", "acme"))
        await second.active_config.refresh()
        world.store.tamper(GROUPS, None)
        answer = await other.call("RefreshConfig")
        assert not answer.updated
        assert answer.errors == [
            f"{GROUPS}: expected the file that was there before: put it back, or {{}} for no dynamic groups"
        ]
        assert (await other.call("RefreshConfig", dry_run=True)).errors == answer.errors
        refused = await other.refused("UpsertGroup", key="mine", config=GroupConfig(template="web", size=0))
        assert refused.status is Status.FAILED_PRECONDITION
        assert GROUPS not in world.store.contents()
        await first.stop()
        await second.until(lambda: second.lead is not None and second.shard.listed)
        await eventually(lambda: all(world.agents[id].connected for id in made))
        assert states(world, "web", "acme") == made
        world.store.tamper(GROUPS, b"{}")
        operator = await world.operator("acme")
        assert (await operator.call("RefreshConfig")).updated
        await eventually(lambda: second.shard.held_groups() == [GroupKey(TenantId("acme"), GroupName("web"))])
        assert states(world, "web", "acme") == made
        assert any("web: group held" in error for error in (await operator.call("GetConfigStatus")).errors)
        assert not (await other.call("GetConfigStatus")).errors
        plan = (await operator.call("DeleteGroup", key="web", dry_run=True)).plan
        assert {action.instance_id for action in plan} == made.keys()
        assert states(world, "web", "acme") == made
        await operator.call("DeleteGroup", key="web")
        await eventually(lambda: "running" not in states(world, "web", "acme").values())
        assert not second.shard.held_groups()


@pytest.mark.parametrize("count", [40])
async def test_many_changes_at_once_are_all_made(tmp_path: Path, count: int) -> None:
    """They share writes: far fewer than there are changes."""
    async with World(tmp_path, agents=False) as world:
        await world.start()
        operator = await world.operator("acme")
        writes = 0

        def fate(verb: Verb, key: str) -> Fate:
            nonlocal writes
            writes += key == GROUPS and verb in (Verb.CREATE, Verb.REPLACE)
            return Fate(before=0.2 if key == GROUPS else 0.0)  # long enough for all to be there

        world.fate = fate
        await asyncio.gather(
            *(
                operator.call("UpsertGroup", key=f"g-{number}", config=GroupConfig(template="web"))
                for number in range(count)
            )
        )
        assert len(written(world)["acme"]) == count
        assert writes < count / 2


async def test_a_new_leader_keeps_the_groups_of_the_api_under_a_broken_configuration(tmp_path: Path) -> None:
    """The second server has started before the group was made, and the file of settings was broken since."""
    async with World(tmp_path) as world:
        first = await world.start("a")
        second = await world.start("b", lead=False)
        operator = await world.operator("acme")
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=2))
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * 2)
        made = set(states(world, "web", "acme"))
        world.store.tamper(f"shard/{SHARD}/config.jsonc", b"{ not valid")
        await first.stop()
        await second.until(lambda: second.lead is not None and second.shard.listed)
        await eventually(lambda: all(world.agents[id].connected for id in made))
        assert states(world, "web", "acme") == dict.fromkeys(made, "running")
        assert "config.jsonc is not valid" in second.active_config.rejection


async def test_a_group_that_is_made_while_other_ports_are_being_opened_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operators' port opens first: a group that is created before the other ports are open must not be lost."""
    async with World(tmp_path) as world:
        first = await world.start()
        operator = await world.operator("acme")
        await first.stop()
        opened, open_port, go_on = 0, grpc_ports.GrpcPort.open, asyncio.Event()

        async def open_first_alone(port: grpc_ports.GrpcPort) -> None:
            nonlocal opened
            opened += 1
            if opened > 1:
                await go_on.wait()
            await open_port(port)

        monkeypatch.setattr(grpc_ports.GrpcPort, "open", open_first_alone)
        starting = asyncio.create_task(world.start())
        await eventually(lambda: opened == 2)
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=2))
        go_on.set()
        await starting
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * 2)


async def test_no_term_begins_with_a_configuration_that_was_not_read_in_it(tmp_path: Path) -> None:
    """Invariant 5: an old configuration does not know newer groups, and must not be read as their absence."""
    async with World(tmp_path) as world:
        first = await world.start("a")
        second = await world.start("b", lead=False)
        operator = await world.operator("acme")
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=2))
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * 2)
        made, refused = set(states(world, "web", "acme")), 0

        def fate(verb: Verb, key: str) -> Fate:
            nonlocal refused
            if key == GROUPS and refused < 3:
                refused += 1
                return Fate(error=errors.UnavailableError("not now"))
            return Fate()

        world.fate = fate
        await first.stop()
        await second.until(lambda: second.lead is not None and second.shard.listed)
        assert refused == 3
        assert states(world, "web", "acme") == dict.fromkeys(made, "running")


async def test_a_group_shrinks_by_the_instances_that_the_caller_chose(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.start()
        operator = await world.operator("acme")
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=4))
        await eventually(lambda: ready(world, "web", "acme") == 4)
        ids = sorted(states(world, "web", "acme"))
        stale = await operator.refused(
            "UpsertGroup", key="web", config=GroupConfig(size=2), etag="other", remove_first=[ids[0]]
        )
        assert stale.status is Status.ABORTED
        assert all(each.removal_rank is None for each in world.leader.lead_now.shard.instances.values())
        twice = await operator.refused(
            "UpsertGroup", key="web", config=GroupConfig(template="web", size=2), remove_first=[ids[1], ids[1]]
        )
        assert twice.status is Status.INVALID_ARGUMENT
        await operator.call(
            "UpsertGroup",
            key="web",
            config=GroupConfig(template="web", size=2),
            remove_first=[ids[3], "web-00000000000000000000000000", ids[1]],
        )

        def running() -> list[str]:
            return sorted(id for id, state in states(world, "web", "acme").items() if state == "running")

        await eventually(lambda: running() == [ids[0], ids[2]])


async def test_a_group_shows_the_capacity_of_its_template(tmp_path: Path) -> None:
    template = {"kind": "web", "arch": "arm64", "capacity": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}}
    settings = config()
    async with World(tmp_path, {**settings, "templates": {**settings["templates"], "big": template}}) as world:
        await world.start()
        operator = await world.operator("acme")
        made = await operator.call("UpsertGroup", key="web", config=GroupConfig(template="big", size=0))
        assert dict(made.group.capacity) == {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
        assert (made.group.architecture, made.group.operating_system) == ("arm64", "linux")
