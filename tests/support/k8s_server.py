"""dev-k8s in the test's own process, on a free port, with kubectl and plain HTTP to talk to it."""

import asyncio
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from nstance.dev.k8s import main

OLDEST = 28  # kubectl 1.28 knows all that the tests ask for


def _kubectl() -> str | None:
    found = shutil.which("kubectl")
    if found is None:
        return None
    version = subprocess.run([found, "version", "--client", "-o", "json"], capture_output=True, timeout=30, check=False)
    minor = re.search(rb'"minor": "(\d+)', version.stdout)
    return found if minor is not None and int(minor[1]) >= OLDEST else None


KUBECTL = _kubectl()
NO_KUBECTL = f"kubectl 1.{OLDEST} or newer is not installed: what stock clients make of dev-k8s is not tested here"
DEADLINE = 90.0


class Server:
    def __init__(self, folder: pathlib.Path, home: pathlib.Path, port: int, session: aiohttp.ClientSession) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"
        self._home = home
        self._session = session
        (home / "config").write_text(main.KUBECONFIG.format(port=port))

    @property
    def environment(self) -> dict[str, str]:
        """In which kubectl finds this server, and keeps its cache to itself."""
        return {"PATH": os.environ["PATH"], "HOME": str(self._home), "KUBECONFIG": str(self._home / "config")}

    async def kubectl(self, *arguments: str, stdin: str = "", fails: bool = False, **environment: str) -> str:
        """What it prints; with `fails`, what it complains."""
        assert KUBECTL is not None
        process = await asyncio.create_subprocess_exec(
            KUBECTL,
            *arguments,
            env={**self.environment, **environment},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(DEADLINE):
                out, complaint = await process.communicate(stdin.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert (process.returncode != 0) is fails, f"kubectl {' '.join(arguments)}: {out.decode()}{complaint.decode()}"
        return complaint.decode() if fails else out.decode()

    async def call(self, method: str, path: str, body: Any = None, *, code: int = 200, **headers: str) -> Any:
        """The JSON that is answered."""
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if raw is not None:
            sent.setdefault("Content-Type", "application/json")
        async with self._session.request(
            method, self.url + path, data=raw and io.BytesIO(raw), headers=sent
        ) as response:
            text = await response.text()
            assert response.status == code, text
            return json.loads(text)

    async def warnings(self, method: str, path: str, body: Any, **headers: str) -> list[str]:
        """The warnings that come with the answer."""
        sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): each for name, each in headers.items()}
        async with self._session.request(method, self.url + path, data=json.dumps(body), headers=sent) as response:
            assert response.ok, await response.text()
            return response.headers.getall("Warning", [])

    def stream(self, path: str, **headers: str) -> Any:
        return self._session.get(self.url + path, headers=headers)

    async def get(self, path: str) -> Any:
        return await self.call("GET", path)

    def file(self, path: str) -> Any:
        """A file's JSON, None while there is none."""
        try:
            return json.loads((self.folder / path).read_text())
        except FileNotFoundError:
            return None

    def edit(self, path: str, body: Any) -> None:
        """As an editor does: in place."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(body if isinstance(body, str) else json.dumps(body))


@contextlib.asynccontextmanager
async def serving(folder: pathlib.Path, *, window: int = 10_000) -> AsyncIterator[Server]:
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    async with main.serving(folder, port=0, window=window) as port, aiohttp.ClientSession() as session:
        yield Server(folder, home, port, session)
