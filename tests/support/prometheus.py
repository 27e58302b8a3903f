"""Prometheus and promtool, where they are installed (Debian: the package `prometheus`)."""

import asyncio
import contextlib
import json
import math
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp

from support.eventually import eventually


def _find(program: str) -> str | None:
    folder = os.environ.get("NSTANCE_PROMETHEUS")  # a folder with both programs
    return shutil.which(program, path=folder) if folder else shutil.which(program)


PROMTOOL = _find("promtool")
PROMETHEUS = _find("prometheus")


async def promtool(*arguments: str, stdin: str = "") -> tuple[int, str]:
    """Its exit code and what it printed."""
    assert PROMTOOL is not None
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        PROMTOOL, *arguments, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(stdin.encode()), 300)
    assert process.returncode is not None
    return process.returncode, output.decode()


class Prometheus:
    """One that scrapes every second."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def query(self, expression: str) -> list[float]:
        """The values now, without those that are no numbers."""
        async with self._session.get(f"{self._url}/api/v1/query", params={"query": expression}) as answer:
            reply = await answer.json()
            assert reply["status"] == "success", f"{expression}: {reply}"
        values = [float(each["value"][1]) for each in reply["data"]["result"]]
        return [value for value in values if not math.isnan(value)]

    async def is_ready(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            async with self._session.get(f"{self._url}/-/ready") as answer:
                return answer.status == 200
        return False


@contextlib.asynccontextmanager
async def running(
    folder: Path, port: int, jobs: Mapping[str, tuple[str, Mapping[str, str]]]
) -> AsyncIterator[Prometheus]:
    """`jobs`: the address that each one scrapes, and its labels."""
    assert PROMETHEUS is not None
    await asyncio.to_thread(folder.mkdir)
    scrapes = [
        {"job_name": job, "static_configs": [{"targets": [target], "labels": labels}]}
        for job, (target, labels) in jobs.items()
    ]
    settings = {"global": {"scrape_interval": "1s"}, "scrape_configs": scrapes}
    (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
    process = await asyncio.create_subprocess_exec(
        PROMETHEUS,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    )
    try:
        async with aiohttp.ClientSession() as session:
            made = Prometheus(f"http://127.0.0.1:{port}", session)
            await eventually(made.is_ready, "Prometheus is ready")
            yield made
    finally:
        process.kill()
        await process.wait()
