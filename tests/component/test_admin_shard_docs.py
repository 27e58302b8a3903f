"""The commands of docs/admin.md, run in their order against a whole server."""

import asyncio
import re
import shlex
import shutil
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from component.admin_shell import shell
from component.whole_server import World
from nstance.admin.http.unversioned import UnversionedRoutes
from support import docs_pages, ports

SERVE = "nstance-admin serve &"
READY = 'until curl -sf "http://127.0.0.1:8080/health" > health; do sleep 0.1; done'
PAGE = (Path(__file__).parents[2] / "docs" / "admin.md").read_text()


async def test_the_commands_of_the_page_work_in_their_order(tmp_path: Path) -> None:
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    commands = [shlex.split(line.removeprefix("$ nstance-admin ")) for block in blocks for line in block.splitlines()]
    assert len(commands) > 15
    async with World(tmp_path) as world:
        await world.start()
        admin = await shell(world)
        for words in commands:
            await admin.ok(*words)


def test_the_addresses_of_the_page_are_served() -> None:
    calls = re.findall(r"^curl (.*) '(http\S+)'$|^curl '(http\S+)'$", PAGE, re.MULTILINE)
    asked = {("POST" if "POST" in flags else "GET", urlsplit(first or second)) for flags, first, second in calls}
    routes = UnversionedRoutes(None, None, None, None).routes()  # type: ignore[arg-type]
    served = {(route.method, route.path): route for route in routes}
    assert {(method, url.path) for method, url in asked} == served.keys() - {
        ("GET", "/"),
        ("GET", "/health"),
        ("GET", "/metrics"),
    }
    for method, url in asked:
        assert parse_qs(url.query).keys() <= (served[method, url.path].query or {}).keys()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs the program curl")
async def test_the_http_commands_of_the_page_work(tmp_path: Path) -> None:
    runnable = docs_pages.runnable("admin.md")
    commands = runnable[runnable.index(SERVE) + 1 :]
    assert sum(command.startswith("curl ") for command in commands) == 11
    # The stream goes on for ever: two seconds are enough.
    # Nothing was rolled out yet that could be rolled back or resumed: that is refused.
    commands = [c + (" || test $? = 22" if "rollback" in c or "resume-rollout" in c else "") for c in commands]
    curls = [c.replace("curl -N", "timeout 2 curl -N") + (" || test $? = 124" if "-N" in c else "") for c in commands]
    script = "\n".join([SERVE, "trap 'kill $!' EXIT", READY, *curls]).replace("curl ", "curl -sf ")
    async with World(tmp_path) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("group", "create", "web", "--template", "web", "--size", "1")
        with ports.claimed() as port:
            script = script.replace("serve &", f"serve --bind 127.0.0.1:{port} &").replace(
                "127.0.0.1:8080", f"127.0.0.1:{port}"
            )
            running = await asyncio.create_subprocess_exec(
                *("bash", "-euo", "pipefail", "-c", script),
                cwd=tmp_path,
                env=docs_pages.environment(**admin.environment),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            output, problems = await asyncio.wait_for(running.communicate(), 120)
    assert running.returncode == 0, problems.decode()
    for word in (b'"etag"', b'"size":5', b'"instance_id"', b"data: ", b"openapi"):
        assert word in output
    assert len((tmp_path / "token").read_text().strip()) > 16
