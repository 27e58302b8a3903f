"""The commands of docs/http-api.md, run in their order against `serve` in front of a whole server."""

import asyncio
import shutil
from pathlib import Path

import pytest

from component.admin_shell import shell
from component.whole_server import World, config
from support import docs_pages, ports

GROUPS = {"default": {"web": {"template": "web", "size": 2, "drain_timeout": "0"}}}
READY = 'until curl -sf "http://127.0.0.1:8080/health" > health; do sleep 0.1; done'
SECONDS = 120


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs the program curl")
async def test_the_commands_of_the_page_work_in_their_order(tmp_path: Path) -> None:
    [serve, *commands] = docs_pages.runnable("http-api.md")
    assert serve.startswith("nstance-admin serve")
    # A stream goes on for ever: its first lines are enough.
    commands = [f"exec 3< <({each}); head -n 3 <&3; kill $!" if "-N" in each else each for each in commands]
    script = "\n".join([serve, "serve=$!", "trap 'kill $serve' EXIT", READY, *commands]).replace("curl ", "curl -sf ")
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        world.copy_bucket(tmp_path / "bucket")
        (tmp_path / "examples").symlink_to(docs_pages.ROOT / "examples")
        with ports.claimed() as port:
            script = script.replace("serve --", f"serve --bind 127.0.0.1:{port} --").replace(
                "127.0.0.1:8080", f"127.0.0.1:{port}"
            )
            running = await asyncio.create_subprocess_exec(
                *("bash", "-euo", "pipefail", "-c", script),
                cwd=tmp_path,
                env=docs_pages.environment(**admin.environment),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            output, problems = await asyncio.wait_for(running.communicate(), SECONDS)
    assert running.returncode == 0, problems.decode() + output.decode()[-2000:]
    for words in (
        b'"openapi":"3.1.0"',
        b'"reason":"scale-up"',
        b"event: snapshot",
        b"one more would: create",
        b"of 3 ready",
    ):
        assert words in output, words
    assert (tmp_path / "events.ndjson").read_text().count("\n") > 5
