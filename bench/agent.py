"""Row 13: a real agent process: its memory, and the time from its start to its registration."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench import fleet
from bench.fleet_server import resident, until
from bench.rows import Row, percentile, spread
from nstance.config.addresses import Service

AGENTS = 10
MB = 1e6


async def run() -> AsyncIterator[Row]:
    sizes, starts = [], []
    async with fleet.serving(fleet.Setup(groups=1, size=AGENTS, settled=False)) as server:
        async with asyncio.timeout(30):
            await server.count_created(AGENTS)
        for id, nonce in (await server.ask("nonces"))["booted"]:
            with tempfile.TemporaryDirectory(prefix="nstance-bench-") as folder:
                size, seconds = await _measure_one(server, id, nonce, Path(folder))
                sizes.append(size / MB)
                starts.append(1000 * seconds)
    yield Row(
        number="13",
        what="agent: resident memory after registration and files",
        value=max(sizes),
        unit="MB",
        goal=28.0,
        detail=spread(sizes, "MB"),
    )
    yield Row(
        number="13",
        what="agent: start of the process to registered, median",
        value=percentile(starts, 0.5),
        unit="ms",
        goal=300.0,
        detail=spread(starts, "ms", 0),
    )


async def _measure_one(server: fleet.Server, id: str, nonce: str, dir: Path) -> tuple[int, float]:
    environment = _prepare(server, id, nonce, dir)
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("nstance-agent"), env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(30):
            # Its certificate is on disk: from here on a restart needs no nonce.
            await until((dir / "identity" / "identity.crt").exists, every=0.001)
            seconds = time.monotonic() - began
            await until((dir / "recv" / "motd").exists)
            await asyncio.sleep(1.0)  # until the first report, after which memory is freed
            return resident(process.pid), seconds
    finally:
        process.kill()
        await process.wait()


def _prepare(server: fleet.Server, id: str, nonce: str, dir: Path) -> dict[str, str]:
    """Prepare its files as userdata does on a VM."""
    identity = dir / "identity"
    identity.mkdir()
    (identity / "ca.crt").write_text(server.ca.pem)
    (identity / "nonce.jwt").write_text(nonce + "\n")
    port = {service: server.settings["base"] + number for number, service in enumerate(Service)}
    return {
        "PATH": os.environ["PATH"],
        "MALLOC_ARENA_MAX": "1",  # as its systemd unit has it
        "NSTANCE_SERVER_REGISTRATION_ADDR": f"127.0.0.1:{port[Service.REGISTRATION]}",
        "NSTANCE_SERVER_AGENT_ADDR": f"127.0.0.1:{port[Service.AGENT]}",
        "NSTANCE_INSTANCE_ID": id,
        "NSTANCE_PROVIDER": "none",  # this machine may be a VM of a cloud: its metadata service must not be asked
        "NSTANCE_IDENTITY_DIR": str(identity),
        "NSTANCE_KEYS_DIR": str(dir / "keys"),
        "NSTANCE_RECV_DIR": str(dir / "recv"),
    }
