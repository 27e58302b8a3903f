"""What `wait`, `status`, `group` and `instance` say of instances that are not ready."""

from pathlib import Path

from component.admin_shell import shell
from component.whole_server import Json, World, config, ready, states
from support.eventually import eventually

GROUPS = {"default": {"workers": {"template": "web", "size": 2}}}


def shard_config(*, instance_type: str = "small", files: Json | None = None, checks: Json | None = None) -> Json:
    made = config(groups=GROUPS)
    made["templates"]["web"] |= {"instance_type": instance_type, "checks": checks or {}}
    made["templates"]["web"]["files"] |= files or {}
    return made


async def test_a_rotation_to_a_template_with_a_missing_secret_is_neither_stable_nor_healthy(tmp_path: Path) -> None:
    async with World(tmp_path, shard_config()) as world:
        server = await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        assert (await admin.json("status"))["shards"][0]["healthy"]
        old = set(states(world, "workers"))
        world.configure(
            shard_config(instance_type="large", files={"token": {"kind": "secret", "source": "worker-token"}})
        )
        await server.active_config.refresh()
        late = await admin("wait", "workers", "--within", "1s")
        assert late.exit_code == 1
        assert "not stable after 1 s: workers" in late.stderr
        assert "blocked: token: " in late.stderr
        # A replacement was made. It has no files, and nobody calls that healthy.
        await eventually(lambda: {id for id, state in states(world, "workers").items() if state == "running"} - old)
        await eventually(lambda: server.lead_now.readiness.blocked(next(iter(server.shard.desired_groups))))
        status = (await admin.json("status"))["shards"][0]
        assert not status["healthy"]
        [group] = status["groups"]
        assert not group["healthy"]
        assert "worker-token" in group["blocked"][0]
        assert "blocked: token: " in (await admin.ok("status")).stdout
        assert "blocked: token: " in (await admin.ok("group", "list")).stdout
        assert "worker-token" in (await admin.ok("group", "show", "workers")).stdout
        assert "files cannot be rendered" in (await admin.ok("events")).stdout


async def test_a_failing_check_is_shown_wherever_somebody_looks(tmp_path: Path) -> None:
    async with World(tmp_path, shard_config(checks={"up": {"kind": "http", "port": 80, "path": "/healthz"}})) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        id = min(states(world, "workers"))
        world.agents[id].fail("up", "answered 500")
        await eventually(lambda: ready(world, "workers") == 1)
        late = await admin("wait", "--within", "1ms")
        assert late.exit_code == 1
        assert "workers 1/2 ready, 1 not ready: failing checks: up" in late.stderr
        [line] = [line for line in (await admin.ok("instance", "list")).stdout.splitlines() if line.startswith(id)]
        assert line.split()[2:4] == ["running", "no"]
        assert "not ready: failing checks: up" in line
        shown = (await admin.ok("instance", "show", id)).stdout
        assert "up failing since" in shown
        assert "(answered 500)" in shown
        assert (await admin.json("instance", "show", id))["checks"][0]["passing"] is False
        assert "not ready: failing checks: up" in (await admin.ok("status")).stdout
        world.agents[id].fail("up", "")
        await admin.ok("wait")
        assert (await admin.json("status"))["shards"][0]["healthy"]
