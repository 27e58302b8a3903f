"""The userdata script and the agent's bundle in clean roots: no Python, no systemd, nothing but the distribution.

`make test-agent-roots` makes the roots and runs this file.
"""

import asyncio
import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from component.agent_server import AgentServer
from nstance import gotemplate
from nstance.dev import sandbox
from support.eventually import eventually

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "none")
BUNDLE = ROOT / "dist" / f"nstance-agent-linux-{ARCH}.tar.gz"
ROOTS = sorted(Path(os.environ.get("NSTANCE_TEST_ROOTS", "/nonexistent")).glob("*.tar"))
MAX_BUNDLE_BYTES = 25 << 20
MAX_START_SECONDS = 0.4

needs_bundle = pytest.mark.skipif(not BUNDLE.exists(), reason="the bundle is not built (make agent-bundle)")


@contextlib.asynccontextmanager
async def serving(path: Path) -> AsyncIterator[str]:
    app = web.Application()

    async def send(request: web.Request) -> web.FileResponse:
        return web.FileResponse(path)

    app.router.add_get("/agent", send)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/agent"
    finally:
        await runner.cleanup()


def userdata(server: AgentServer, url: str, nonce: str, instance: str, home: dict[str, str]) -> str:
    data: dict[str, Any] = {
        "Cluster": {"ID": server.cluster, "CACert": server.ca.pem},
        "Server": {
            "RegistrationAddr": home["NSTANCE_SERVER_REGISTRATION_ADDR"],
            "AgentAddr": home["NSTANCE_SERVER_AGENT_ADDR"],
        },
        "Provider": {"Kind": "proxmox"},
        "Instance": {"ID": instance, "Kind": instance.partition("-")[0], "Hostname": ""},
        "Vars": {"WaitTimeout": "30s"},
        "Nonce": nonce,
        "Agent": {"URL": url, "SHA256": hashlib.sha256(BUNDLE.read_bytes()).hexdigest(), "Version": ""},
    }
    script = (ROOT / "deploy" / "userdata" / "agent.sh").read_text()
    return gotemplate.render(script + "cat /opt/nstance-agent/recv/hello.txt\n", data)


@needs_bundle
@pytest.mark.skipif(not ROOTS, reason="there are no roots (make test-agent-roots)")
@pytest.mark.parametrize("image", ROOTS, ids=lambda path: path.stem)
async def test_the_agent_registers_from_a_clean_root(image: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    unpacking = await asyncio.create_subprocess_exec("tar", "-xf", image, "-C", root, "--exclude=./dev/*")
    assert await unpacking.wait() == 0
    shutil.copy(Path(sandbox.__file__).with_name("systemctl.sh"), root / "usr/bin/systemctl")
    (root / "usr/bin/systemctl").chmod(0o755)
    assert not (root / "usr/bin/python3").exists()
    async with AgentServer().running() as server, serving(BUNDLE) as url:
        server.push({"hello.txt": b"hello from the server\n"}, "sha256:1")
        instance = server.new_instance()
        home = server.prepare(tmp_path / "home", instance)
        nonce = (tmp_path / "home/identity/nonce.jwt").read_text()
        script = root / "userdata.sh"
        script.write_text(userdata(server, url, nonce, instance, home))
        # A process namespace of its own: whatever the script started ends with it.
        mounts = f"mount -t proc proc {root}/proc; mount -t tmpfs tmpfs {root}/dev; touch {root}/dev/console; "
        mounts += f"mknod -m 666 {root}/dev/null c 1 3; mknod -m 666 {root}/dev/urandom c 1 9; "
        command = f"{mounts}chroot {root} sh /userdata.sh && sleep 600"
        process = await asyncio.create_subprocess_exec(
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", command),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(90):
                while (line := await process.stdout.readline()) and b"hello" not in line:
                    continue
            assert line == b"hello from the server\n", (await process.communicate())[1].decode()
            await eventually(lambda: server.last_seen.reports[-1].config_hash == "sha256:1")
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@needs_bundle
def test_the_bundle_is_small_starts_fast_and_needs_no_newer_glibc(tmp_path: Path) -> None:
    assert BUNDLE.stat().st_size <= MAX_BUNDLE_BYTES
    with tarfile.open(BUNDLE) as archive:
        archive.extractall(tmp_path, filter="tar")
    agent = tmp_path / "nstance-agent" / "bin" / "nstance-agent"
    # All that a start imports, without a server to wait for. CPU time, because other programs may use this machine.
    python = agent.with_name("python3")
    script = "import nstance.agent.lifecycle, nstance.agent.main, resource; print(resource.getrusage(0)[0])"
    command = [str(python), "-I", "-S", "-B", "-c", script]
    times = [float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(3)]
    assert min(times) <= MAX_START_SECONDS
    newest = max(
        (int(minor) for path in (python, *tmp_path.rglob("*.so")) for minor in glibc_versions(path)), default=0
    )
    assert 0 < newest <= 28


def glibc_versions(path: Path) -> list[str]:
    """The minor versions of glibc 2 whose symbols a program or library uses."""
    content = path.read_bytes()
    found = []
    start = content.find(b"GLIBC_2.")
    while start >= 0:
        end = start + len(b"GLIBC_2.")
        digits = content[end : end + 2]
        found.append((digits if digits.isdigit() else digits[:1]).decode())
        start = content.find(b"GLIBC_2.", end)
    return [each for each in found if each.isdigit()]
