"""Readiness on a whole server: files, checks, blocked sets, and what waits for them."""

from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from component.whole_server import SHORT_LEASE, Json, LightAgent, Operator, World, config, ready, states
from nstance.model.ids import InstanceId
from nstance.server.waits import Waits
from nstance.tasks.backoff import Backoff
from nstance.v1 import agent_pb2
from support.eventually import eventually

UP: Json = {"kind": "tcp", "port": 8080}
DISK: Json = {"kind": "command", "argv": ["df", "/"]}


def configuration(size: int = 2, *, balancers: tuple[str, ...] = (), files: Json | None = None, **checks: Any) -> Json:
    groups = {
        "acme": {
            "web": {"template": "web", "size": size, "load_balancers": list(balancers)},
            "other": {"template": "plain", "size": 1},
        }
    }
    made = config(groups=groups) | {"load_balancers": {name: {"provider": "memory"} for name in balancers}}
    made["templates"]["plain"] = dict(made["templates"]["web"])
    made["templates"]["web"]["checks"] = checks
    if files is not None:
        made["templates"]["web"]["files"] = files
    return made


async def statuses(operator: Operator) -> dict[str, Any]:
    return {each.instance_id: each for each in (await operator.call("ListInstances", group="web")).instances}


async def group(operator: Operator) -> Any:
    return next(each for each in (await operator.call("ListGroups")).groups if each.key == "web")


def agents(world: World, name: str = "web") -> list[LightAgent]:
    return [world.agents[id] for id in states(world, name, "acme") if id in world.agents]


async def change(world: World, made: Json) -> None:
    world.configure(made)
    await world.leader.active_config.refresh()


async def test_an_instance_is_ready_when_its_files_are_there_and_its_checks_pass(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(2, up=UP, disk=DISK)) as world:
        await world.start()
        operator = await world.operator("acme")
        await eventually(lambda: ready(world, "web", "acme") == 2)
        first, second = agents(world)
        assert [check.name for check in first.checks.checks] == ["disk", "up"]
        assert agents(world, "other")[0].checks.hash == ""
        first.fail("up", "connection \x1b[31mrefused")
        await eventually(lambda: ready(world, "web", "acme") == 1)
        shown = await statuses(operator)
        bad, good = shown[first.id], shown[second.id]
        assert (bad.ready, bad.not_ready) == (False, "failing checks: up")
        assert [(c.name, c.passing, c.message) for c in bad.checks] == [
            ("disk", True, ""),
            ("up", False, "connection  [31mrefused"),
        ]
        assert (good.ready, good.not_ready) == (True, "")
        assert good.ready_unix_ms >= good.registered_unix_ms > 0
        assert bad.ready_unix_ms > 0  # it was ready once
        whole = await group(operator)
        assert (whole.actual_size, whole.ready_size, whole.not_ready) == (2, 1, 1)
        facts = world.leader.shard.facts[InstanceId(first.id)]
        assert (facts.agent.ready, facts.agent.not_ready) == (False, "failing checks: up")
        first.fail("up", "")
        await eventually(lambda: ready(world, "web", "acme") == 2)


async def test_changed_checks_reach_the_agents_of_their_group_and_replace_nobody(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(2, up=UP)) as world:
        server = await world.start()
        await eventually(lambda: ready(world, "web", "acme") == 2)
        before, files = dict(states(world, "web", "acme")), [each.files for each in agents(world)]
        await change(world, configuration(2, up=UP | {"port": 9090}))
        # Results of other checks prove nothing, from this moment on.
        assert ready(world, "web", "acme") == 0
        await eventually(lambda: ready(world, "web", "acme") == 2)
        assert {each.checks.checks[0].tcp.port for each in agents(world)} == {9090}
        assert agents(world, "other")[0].checks.hash == ""
        await change(world, configuration(2))
        await eventually(lambda: all(each.checks.hash == "" for each in agents(world)))
        await eventually(lambda: ready(world, "web", "acme") == 2)
        assert states(world, "web", "acme") == before
        assert [each.files for each in agents(world)] == files
        assert server.shard.desired_groups[next(iter(server.shard.desired_groups))].unhealthy_after is None


async def test_an_agent_of_an_older_version_becomes_ready_unless_it_would_have_to_run_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    born = LightAgent.__init__

    def old(self: LightAgent, *args: Any) -> None:
        born(self, *args)
        self.knows_readiness = False

    monkeypatch.setattr(LightAgent, "__init__", old)
    async with World(tmp_path, configuration(1, up=UP)) as world:
        await world.start()
        operator = await world.operator("acme")
        await eventually(lambda: ready(world, "other", "acme") == 1)
        [agent] = agents(world)
        await eventually(lambda: agent.config_hash)
        [shown] = (await statuses(operator)).values()
        assert not shown.ready
        assert "its agent of version test does not run checks" in shown.not_ready


async def test_files_whose_command_fails_do_not_count(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(1)) as world:
        await world.start()
        operator = await world.operator("acme")
        await eventually(lambda: ready(world, "web", "acme") == 1)
        [agent] = agents(world)
        agent.on_receive_problem = "NSTANCE_ON_RECEIVE failed: exit code 1"
        agent.report()
        await eventually(lambda: ready(world, "web", "acme") == 0)
        [shown] = (await statuses(operator)).values()
        assert shown.not_ready == "its files are not installed yet; NSTANCE_ON_RECEIVE failed: exit code 1"


async def test_a_lost_agent_is_not_ready_and_a_new_leader_believes_the_journal(tmp_path: Path) -> None:
    short = configuration(1, up=UP)
    short["shard"]["leader_election"] = SHORT_LEASE
    async with World(tmp_path, short) as world:
        first = await world.start("a")
        operator = await world.operator("acme")
        await eventually(lambda: ready(world, "web", "acme") == 1)
        async with operator.watch(instances=True) as watching:
            await watching.snapshot()
            [agent] = agents(world)
            agent.mute()
            gone = await watching.until(lambda m: m.instance.group == "web" and not m.instance.ready)
            assert (gone.instance.state, gone.instance.not_ready) == ("running", "its agent is not connected")
            agent.speak()
            await watching.until(lambda m: m.instance.group == "web" and m.instance.ready)
        agent.stop()
        await first.crash()
        second = await world.start("b")
        [id] = states(world, "web", "acme")
        assert ready(world, "web", "acme") == 1  # nobody has heard otherwise yet
        assert not second.shard.facts[id].agent.ready if id in second.shard.facts else True


async def test_only_a_ready_instance_comes_into_a_load_balancer_and_stays_while_a_check_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    born = LightAgent.__init__

    def failing(self: LightAgent, *args: Any) -> None:
        born(self, *args)
        self.failing["up"] = "connection refused"

    monkeypatch.setattr(LightAgent, "__init__", failing)
    async with World(tmp_path, configuration(2, balancers=("front",), up=UP)) as world:
        await world.start()
        await eventually(lambda: [bool(agent.checks.hash) for agent in agents(world)] == [True, True])
        first, second = agents(world)
        first.fail("up", "")
        await eventually(lambda: ready(world, "web", "acme") == 1)
        vms = {id: world.leader.shard.instances[id].provider_id for id in states(world, "web", "acme")}
        await eventually(lambda: set(world.cloud.load_balancers.get("front", ())) == {vms[first.id]})
        first.fail("up", "connection refused")
        await eventually(lambda: ready(world, "web", "acme") == 0)
        second.fail("up", "")
        await eventually(lambda: set(world.cloud.load_balancers["front"]) == set(vms.values()))


SECRET: Json = {"token": {"kind": "secret", "source": "web-token"}}
MOTD: Json = {"motd": {"kind": "string", "template": "hi"}}


async def test_a_missing_secret_blocks_the_group_until_it_is_there(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(2, files=MOTD)) as world:
        world.waits = Waits(files_retry=Backoff(0.05, 60.0))
        server = await world.start()
        operator = await world.operator("acme")
        await eventually(lambda: ready(world, "web", "acme") == 2)
        assert list((await group(operator)).blocked) == []
        await change(world, configuration(2, files=MOTD | SECRET))
        assert ready(world, "web", "acme") == 0  # from this moment on, or `wait` would say stable too early
        await eventually(
            lambda: all(s.blocked for s in map(server.lead_now.agents.get, states(world, "web", "acme")) if s)
        )
        assert ready(world, "web", "acme") == 0
        shown = await group(operator)
        [reason] = shown.blocked
        assert reason.startswith("token: ")
        assert "web-token" in reason
        assert all(
            each.not_ready == f"its files cannot be rendered: {reason}" for each in (await statuses(operator)).values()
        )
        assert [each.files for each in agents(world)] == [{"motd": b"hi"}] * 2  # the last good set
        assert b'nstance_group_blocked{group="web",tenant="acme"} 1.0' in server.server.metrics.render()
        assert b'nstance_instances_ready{group="web",tenant="acme"} 0.0' in server.server.metrics.render()
        assert b'nstance_instances_ready{group="other",tenant="acme"} 1.0' in server.server.metrics.render()
        await server.configured.env.secret_store.put("web-token", b"s3cret")
        await eventually(lambda: ready(world, "web", "acme") == 2)
        assert [each.files["token"] for each in agents(world)] == [b"s3cret"] * 2
        assert list((await group(operator)).blocked) == []
        events = (await operator.call("ListEvents", group="web", limit=1000)).events
        reasons = [e for e in events if e.reason in ("blocked", "recovered")]
        assert [(e.reason, e.trouble) for e in reasons] == [("blocked", True), ("recovered", False)]
        assert reason in reasons[0].message


async def test_a_new_configuration_unblocks_at_once(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(1, files=MOTD)) as world:
        world.waits = Waits(files_retry=Backoff(3600.0, 3600.0))
        server = await world.start()
        await eventually(lambda: ready(world, "web", "acme") == 1)
        await change(world, configuration(1, files={"motd": {"kind": "storage", "source": "no/such/object"}}))
        [id] = states(world, "web", "acme")
        await eventually(lambda: (found := server.lead_now.agents.get(id)) is not None and found.blocked)
        await change(world, configuration(1, files=MOTD))
        await eventually(lambda: ready(world, "web", "acme") == 1)


async def test_too_many_results_are_refused(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(1)) as world:
        await world.start()
        await eventually(lambda: ready(world, "web", "acme") == 1)
        [agent] = agents(world)
        agent.checks = agent_pb2.CheckConfig(checks=[agent_pb2.Check(name=str(n)) for n in range(65)])
        seen: list[Status] = []
        real = agent._report

        async def report() -> None:
            try:
                await real()
            except GRPCError as refusal:
                seen.append(refusal.status)
                agent.checks = agent_pb2.CheckConfig()
                raise

        agent._report = report  # type: ignore[method-assign]
        agent.mute()
        agent.speak()
        await eventually(lambda: seen)
        assert seen[0] is Status.INVALID_ARGUMENT
        await eventually(lambda: ready(world, "web", "acme") == 1)


async def test_results_of_names_that_nobody_asked_for_change_nothing(tmp_path: Path) -> None:
    async with World(tmp_path, configuration(1, up=UP)) as world:
        await world.start()
        operator = await world.operator("acme")
        await eventually(lambda: ready(world, "web", "acme") == 1)
        [agent] = agents(world)
        agent.checks.checks.append(agent_pb2.Check(name="mine"))
        agent.fail("mine", "no")
        agent.fail("up", "no")
        await eventually(lambda: ready(world, "web", "acme") == 0)
        [shown] = (await statuses(operator)).values()
        assert [check.name for check in shown.checks] == ["up"]
        agent.checks = agent_pb2.CheckConfig(hash="sha256:of others", checks=agent.checks.checks)
        agent.fail("up", "")
        await eventually(lambda: "without a result" in world.leader.shard.facts[agent.id].agent.not_ready)
