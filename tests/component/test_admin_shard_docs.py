"""The commands of docs/admin.md, run in their order against a whole server."""

import re
import shlex
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from component.admin_shell import shell
from component.whole_server import World
from nstance.admin.http import routes

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
    assert {(method, url.path) for method, url in asked} == routes.OPERATIONS.keys() - {
        ("GET", "/"),
        ("GET", "/health"),
    }
    for method, url in asked:
        assert parse_qs(url.query).keys() <= set(routes.OPERATIONS[method, url.path].query)
