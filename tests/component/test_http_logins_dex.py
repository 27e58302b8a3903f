"""Logging in with Dex, an identity provider that others wrote.

Needs the program `dex`: in the path, or named by NSTANCE_DEX, or in ~/.cache/nstance/dex.
"""

import asyncio
import json
import os
import shutil
from pathlib import Path

import aiohttp
import pytest

from component.http_world import get_json
from component.login_world import REDIRECT, logins, settings
from support import ports
from support.eventually import eventually

CACHED = Path.home() / ".cache" / "nstance" / "dex" / "dex"
DEX = os.environ.get("NSTANCE_DEX") or shutil.which("dex") or (str(CACHED) if CACHED.exists() else None)
pytestmark = pytest.mark.skipif(DEX is None, reason="there is no program dex; build it from github.com/dexidp/dex")
CLIENT, SECRET = "nstance", "a-secret-of-the-test"


def configuration(port: int) -> str:
    """Its mock connector logs one person in without questions, with the group authors."""
    return json.dumps(
        {
            "issuer": f"http://127.0.0.1:{port}/dex",
            "storage": {"type": "memory"},
            "web": {"http": f"127.0.0.1:{port}"},
            "oauth2": {"skipApprovalScreen": True},
            "staticClients": [{"id": CLIENT, "name": CLIENT, "secret": SECRET, "redirectURIs": [REDIRECT]}],
            "connectors": [{"type": "mockCallback", "id": "mock", "name": "mock"}],
        }
    )


async def test_a_person_logs_in_with_dex(tmp_path: Path) -> None:
    assert DEX is not None
    with ports.claimed() as port:
        path = tmp_path / "dex.json"
        path.write_text(configuration(port))
        with (tmp_path / "dex.log").open("wb") as log:
            running = await asyncio.create_subprocess_exec(DEX, "serve", str(path), stdout=log, stderr=log)
        try:
            issuer = f"http://127.0.0.1:{port}/dex"

            async def answers() -> bool:
                assert running.returncode is None, (tmp_path / "dex.log").read_text()
                try:
                    async with aiohttp.ClientSession() as session, session.get(f"{issuer}/healthz") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await eventually(answers)
            async with logins(tmp_path / "site", settings(issuer, client=CLIENT, secret=SECRET)) as site:
                status, text = await site.log_in()
                assert status == 302, text
                session = await get_json(site.browser, "/v1/session")
                found = (session["person"], session["role"], session["tenant"], session["can_change"])
                assert found == ("kilgore@kilgore.trout", "viewer", "globex", False)
                assert [each["group"] for each in (await get_json(site.browser, "/v1/groups"))["groups"]] == [
                    "web-globex"
                ]
            async with logins(tmp_path / "wrong", settings(issuer, client=CLIENT, secret="wrong")) as site:
                status, text = await site.log_in()
                assert (status, "answered 401" in text) == (502, True), text
        finally:
            running.terminate()
            await running.wait()
