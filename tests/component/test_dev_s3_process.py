"""nstance-dev-s3 as a program: its options, its first line, its end, and the aws CLI as its client."""

import asyncio
import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator

import pytest

from nstance.objects.port import Key
from support import s3_server

pytestmark = pytest.mark.e2e

PROGRAM = (sys.executable, "-m", "nstance.dev.s3.main")


async def run(*command: str, cwd: pathlib.Path | None = None, **variables: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={**os.environ, **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def started(*options: str, cwd: pathlib.Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The process and the first line it writes."""
    process = await asyncio.create_subprocess_exec(*PROGRAM, *options, cwd=cwd, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode()
        yield process, line
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_it_says_where_it_listens_and_ends_on_sigterm(tmp_path: pathlib.Path) -> None:
    async with started("--port", "0", cwd=tmp_path) as (process, line):
        match = re.fullmatch(r"dev-s3 listens on http://localhost:(\d+), bucket dev in temp/dev-s3\n", line)
        assert match, line
        for host in ("127.0.0.1", "localhost"):
            client = s3_server.client(f"http://{host}:{match[1]}")
            await client.create(Key(f"from/{host}"), b"1")
        assert (tmp_path / "temp/dev-s3/from/localhost").read_bytes() == b"1"
        process.send_signal(signal.SIGTERM)  # with the clients' connections still open
        async with asyncio.timeout(30):
            assert await process.wait() == 0


async def test_it_listens_on_both_families(tmp_path: pathlib.Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with started("--port", "0", "--dir", "d", cwd=tmp_path) as (_, line):
        port = line.partition("localhost:")[2].partition(",")[0]
        await s3_server.client(f"http://[::1]:{port}").create(Key("k"), b"1")
    assert (tmp_path / "d/k").read_bytes() == b"1"


async def test_what_was_written_survives_kill_9(tmp_path: pathlib.Path) -> None:
    async with started("--port", "0", "--dir", "d", cwd=tmp_path) as (process, line):
        port = line.partition("localhost:")[2].partition(",")[0]
        await s3_server.client(f"http://127.0.0.1:{port}").create(Key("k"), b"1")
        process.kill()
        await process.wait()
    async with started("--port", "0", "--dir", "d", cwd=tmp_path) as (_, line):
        port = line.partition("localhost:")[2].partition(",")[0]
        assert (await s3_server.client(f"http://127.0.0.1:{port}").get(Key("k"))).body == b"1"


async def test_a_port_in_use_is_reported(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, output = await run(*PROGRAM, "--port", port, cwd=tmp_path)
    assert code == 1
    assert output.startswith(f"nstance-dev-s3: port {port} cannot be used")
    assert "--port" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("options", "output"),
    [
        (["--port", "x"], "expected 0 to 65535"),
        (["--port", "70000"], "expected 0 to 65535"),
        (["--dir", "file/below", "--port", "0"], "open the bucket directory"),
        (["--nonsense"], "unrecognized arguments"),
    ],
)
async def test_bad_options_are_reported(tmp_path: pathlib.Path, options: list[str], output: str) -> None:
    (tmp_path / "file").touch()
    code, _, errors = await run(*PROGRAM, *options, cwd=tmp_path)
    assert code in (1, 2)
    assert output in errors
    assert "Traceback" not in errors


async def test_help_has_examples() -> None:
    code, output, _ = await run(*PROGRAM, "--help")
    assert code == 0
    for part in ("examples:", "--dir", "AWS_ENDPOINT_URL=http://localhost:8989"):
        assert part in output


async def test_the_aws_cli_is_content(tmp_path: pathlib.Path) -> None:
    aws = shutil.which("aws")
    if aws is None:
        pytest.skip("the aws CLI is not installed")
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/one.txt").write_bytes(b"one")
    (tmp_path / "tree/sub/tw o.txt").write_bytes(b"two")
    (tmp_path / "big").write_bytes(bytes(range(256)) * 4 * 20_000)  # 20 MB: goes up in parts

    async with s3_server.serving(tmp_path / "bucket") as endpoint:
        variables = {
            **s3_server.CREDENTIALS,
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_PAGER": "",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

        async def cli(*arguments: str) -> str:
            code, out, err = await run(aws, *arguments, cwd=tmp_path, **variables)
            assert code == 0, err
            return out

        await cli("s3", "cp", "big", "s3://dev/big", "--no-progress")
        await cli("s3", "cp", "s3://dev/big", "down", "--no-progress")
        assert (tmp_path / "down").read_bytes() == (tmp_path / "big").read_bytes()
        await cli("s3", "sync", "tree", "s3://dev/tree", "--no-progress")
        listed = await cli("s3", "ls", "s3://dev/", "--recursive")
        assert re.findall(r" {2,}\d+ (.*)$", listed, re.MULTILINE) == ["big", "tree/one.txt", "tree/sub/tw o.txt"]
        assert await cli("s3", "sync", "tree", "s3://dev/tree", "--no-progress") == ""  # nothing has changed
        create = ("s3api", "put-object", "--bucket", "dev", "--key", "once", "--if-none-match", "*")
        await cli(*create)
        code, _, output = await run(aws, *create, cwd=tmp_path, **variables)
        assert (code != 0, "PreconditionFailed" in output) == (True, True), output
        await cli("s3", "rm", "s3://dev/", "--recursive")
        assert await cli("s3", "ls", "s3://dev/") == ""
        assert os.listdir(tmp_path / "bucket/.nstance/uploads") == []
