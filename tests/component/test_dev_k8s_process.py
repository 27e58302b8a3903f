"""nstance-dev-k8s as a program."""

import asyncio
import contextlib
import pathlib
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator

import aiohttp


@contextlib.asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nstance.dev.k8s.main", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_it_serves_both_families_and_ends_on_a_signal_with_watches_open(tmp_path: pathlib.Path) -> None:
    kubeconfig = tmp_path / "made" / "kubeconfig"
    async with running("--port", "0", "--dir", str(tmp_path / "k8s"), "--kubeconfig", str(kubeconfig)) as process:
        assert process.stdout is not None
        output = (await process.stdout.readline()).decode()
        found = re.search(r"http://localhost:(\d+)", output)
        assert found is not None
        assert f'server: "http://127.0.0.1:{found[1]}"' in kubeconfig.read_text()
        async with aiohttp.ClientSession() as session:
            for host in ("127.0.0.1", *(["[::1]"] if socket.has_ipv6 and _has_loopback_6() else [])):
                async with session.get(f"http://{host}:{found[1]}/readyz") as answer:
                    assert await answer.text() == "ok"
            async with session.get(f"http://127.0.0.1:{found[1]}/api/v1/nodes?watch=1") as stream:
                process.send_signal(signal.SIGTERM)
                assert await stream.content.read() == b""
        assert await process.wait() == 0


def _has_loopback_6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


async def test_a_port_in_use_is_reported(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with running("--port", str(taken.getsockname()[1]), "--dir", str(tmp_path / "k8s")) as process:
            _, complaint = await process.communicate()
    assert process.returncode == 1
    assert b"choose others with --port and --dir" in complaint
    assert b"Traceback" not in complaint


async def test_a_folder_that_is_a_file_is_reported(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    async with running("--port", "0", "--dir", str(tmp_path / "file")) as process:
        _, complaint = await process.communicate()
    assert process.returncode == 1
    assert b"Traceback" not in complaint
