"""The agent as users run it: a process with an environment, signals and files."""

import asyncio
import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from component.agent_server import AgentServer
from nstance.agent import units
from nstance.v1 import agent_pb2
from support.eventually import eventually

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
AGENT = [str(Path(sys.executable).with_name("nstance-agent"))]
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
BUNDLE = ROOT / "dist" / f"nstance-agent-linux-{MACHINES.get(platform.machine(), 'none')}.tar.gz"
PYZ = Path(os.environ.get("NSTANCE_TEST_PYZ", ROOT / "dist" / "nstance-agent.pyz"))


@pytest.fixture
async def server() -> AsyncIterator[AgentServer]:
    async with AgentServer().running() as running:
        yield running


@pytest.fixture
def environment(server: AgentServer, tmp_path: Path) -> dict[str, str]:
    return server.prepare(tmp_path / "home", server.new_instance()) | {"PATH": os.environ["PATH"]}


@contextlib.asynccontextmanager
async def running(
    environment: dict[str, str], *arguments: str, command: list[str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(command or AGENT), *arguments, env=environment, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def systemctl(directory: Path, says: str) -> str:
    """A PATH on which systemd says this about the system."""
    directory.mkdir()
    fake = directory / "systemctl"
    fake.write_text(f'#!/bin/sh\n[ "$1" = is-system-running ] && echo {says}\n[ {says} = running ]\n')
    fake.chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


async def run(*arguments: str, environment: dict[str, str]) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *AGENT, *arguments, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(90):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_registers_gets_its_files_and_says_goodbye(
    server: AgentServer, environment: dict[str, str], tmp_path: Path
) -> None:
    server.key_names = ["netsy.server"]
    server.push({"netsy.env": b"A=1\n"}, "sha256:1")
    async with running(environment) as process:
        await eventually(lambda: server.last_seen.reports and server.last_seen.reports[-1].config_hash == "sha256:1")
        await eventually(lambda: server.last_seen.keys)
        assert (tmp_path / "home" / "recv" / "netsy.env").read_bytes() == b"A=1\n"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    assert [goodbye.reason for goodbye in server.last_seen.goodbyes] == [agent_pb2.Goodbye.RESTART]
    # The private key is nowhere but in its own file.
    private = (tmp_path / "home" / "keys" / "netsy.server.key").read_text().splitlines()[1]
    assert all(private not in str(message) for message in [*server.last_seen.messages, *server.last_seen.registrations])


async def test_a_system_that_goes_down_is_a_shutdown(
    server: AgentServer, environment: dict[str, str], tmp_path: Path
) -> None:
    environment["PATH"] = systemctl(tmp_path / "bin", "stopping")
    async with running(environment) as process:
        await eventually(lambda: server.last_seen.reports)
        process.send_signal(signal.SIGUSR1)
        await eventually(lambda: server.last_seen.notices)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    assert {notice.kind for notice in server.last_seen.notices} == {agent_pb2.Notice.SHUTDOWN}
    assert [goodbye.reason for goodbye in server.last_seen.goodbyes] == [agent_pb2.Goodbye.SHUTDOWN]


async def test_a_systemd_that_does_not_answer_does_not_hold_up_the_stop(
    server: AgentServer, environment: dict[str, str], tmp_path: Path
) -> None:
    path = systemctl(tmp_path / "bin", "running")
    (tmp_path / "bin" / "systemctl").write_text("#!/bin/sh\nexec sleep 600\n")
    environment["PATH"] = path
    async with running(environment) as process:
        await eventually(lambda: server.last_seen.reports)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    assert server.last_seen.goodbyes


async def test_killed_at_any_moment_it_comes_back_as_itself(
    server: AgentServer, environment: dict[str, str], tmp_path: Path
) -> None:
    server.push({"a.txt": b"a" * 100_000, "b.txt": b"b"}, "sha256:1")
    for round in range(1, 8):
        async with running(environment) as process:
            # A different moment each time: from before the registration to after the files.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 0.04 * round)
            process.kill()
    async with running(environment):
        await eventually(lambda: server.last_seen.reports and server.last_seen.reports[-1].config_hash == "sha256:1")
    assert len({request.public_key_pem for request in server.last_seen.registrations}) <= 1
    recv = tmp_path / "home" / "recv"
    assert {path.name: path.read_bytes() for path in recv.iterdir()} == {"a.txt": b"a" * 100_000, "b.txt": b"b"}


async def test_wait_returns_once_the_files_are_there(server: AgentServer, environment: dict[str, str]) -> None:
    code, _, err = await run("wait", "--timeout", "50ms", environment=environment)
    assert (code, err) == (1, "nstance-agent: no files installed after 50ms; see the agent's log\n")
    waiting = asyncio.create_task(run("wait", "--timeout", "60s", environment=environment))
    async with running(environment):
        await eventually(lambda: server.last_seen.reports)
        assert not waiting.done()
        server.push({}, "sha256:1")
        assert (await waiting)[0] == 0


async def test_a_wrong_environment_gets_one_line_per_fault() -> None:
    code, _, err = await run(environment={"NSTANCE_INSTANCE_ID": "me", "NSTANCE_KEYS_MODE": "777"})
    assert code == 1
    assert [line.split()[1].rstrip(":") for line in err.splitlines()] == [
        "NSTANCE_SERVER_REGISTRATION_ADDR",
        "NSTANCE_SERVER_AGENT_ADDR",
        "NSTANCE_INSTANCE_ID",
        "NSTANCE_KEYS_MODE",
    ]


async def test_what_only_an_administrator_can_mend_is_one_line(
    server: AgentServer, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "home" / "identity" / "ca.crt").unlink()
    code, _, err = await run(environment=environment)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "expected the cluster's CA certificate at" in err
    (tmp_path / "file").write_text("")
    code, _, err = await run(environment=environment | {"NSTANCE_RECV_DIR": str(tmp_path / "file")})
    assert (code, len(err.splitlines())) == (1, 1)
    assert "expected a writable directory" in err


async def test_a_thread_that_hangs_does_not_keep_the_process(environment: dict[str, str]) -> None:
    """As one does that waits for a dead disk or name server."""
    program = (
        "import asyncio, time\n"
        "from nstance.agent import lifecycle, main\n"
        "async def run(given, **more):\n"
        "    asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)\n"
        "lifecycle.run = run\n"
        "main.main([])\n"
    )
    async with running(environment, command=[sys.executable, "-c", program]) as process:
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_version_and_bad_flags() -> None:
    code, out, _ = await run("--version", environment={})
    assert (code, bool(re.fullmatch(r"nstance-agent \d+\.\d+\.\d+\n", out))) == (0, True)
    code, _, err = await run("wait", "--timeout", "5", environment={})
    assert code == 2
    assert "expected a duration" in err


async def test_the_secrets_are_not_in_the_log(server: AgentServer, environment: dict[str, str], tmp_path: Path) -> None:
    server.push({"token.txt": b"hunter2-very-secret", "bad.json": b'{"password": "hunter2'}, "sha256:1")
    nonce = (tmp_path / "home" / "identity" / "nonce.jwt").read_text().strip()
    async with running(environment, "--debug") as process:
        await eventually(lambda: server.last_seen.reports and server.last_seen.reports[-1].files_error)
        process.terminate()
        assert process.stderr is not None
        log = (await process.stderr.read()).decode()
    assert "expected JSON" in log
    assert "hunter2" not in log
    assert nonce not in log
    assert "PRIVATE KEY" not in log


@pytest.mark.skipif(not PYZ.exists(), reason="dist/nstance-agent.pyz is not built (scripts/build-agent-pyz.sh)")
async def test_the_self_contained_agent(server: AgentServer, environment: dict[str, str], tmp_path: Path) -> None:
    environment |= {"SHIV_ROOT": str(tmp_path / "shiv"), "HOME": str(tmp_path)}
    server.push({"a.txt": b"a"}, "sha256:1")
    # -S -I: nothing of this checkout's environment can help it.
    async with running(environment, command=[sys.executable, "-I", "-S", str(PYZ)]) as process:
        await eventually(lambda: server.last_seen.reports and server.last_seen.reports[-1].config_hash == "sha256:1")
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    assert server.last_seen.goodbyes


@pytest.mark.skipif(not PYZ.exists(), reason="dist/nstance-agent.pyz is not built (scripts/build-agent-pyz.sh)")
def test_the_self_contained_agent_names_the_python_it_needs(tmp_path: Path) -> None:
    """With another one it would start, register, and only then miss its extensions."""
    other = f"import runpy, sys; sys.version_info = (3, 9); runpy.run_path({str(PYZ)!r}, run_name='__main__')"
    environment = {"SHIV_ROOT": str(tmp_path / "shiv"), "HOME": str(tmp_path)}
    command = [sys.executable, "-I", "-S", "-c", other]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert "expected Python 3." in found.stderr
    assert "found Python 3.9" in found.stderr


@pytest.mark.skipif(not BUNDLE.exists(), reason="the bundle is not built (make agent-bundle)")
async def test_the_agent_with_its_own_python(server: AgentServer, environment: dict[str, str], tmp_path: Path) -> None:
    with tarfile.open(BUNDLE) as archive:
        archive.extractall(tmp_path / "bundle", filter="tar")
    command = [str(tmp_path / "bundle" / "nstance-agent" / "bin" / "nstance-agent")]
    server.push({"a.txt": b"a"}, "sha256:1")
    async with running(environment, command=command) as process:
        await eventually(lambda: server.last_seen.reports and server.last_seen.reports[-1].config_hash == "sha256:1")
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    assert server.last_seen.goodbyes


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", ["nstance-agent.service", "nstance-agent-shutdown.service"])
def test_systemd_understands_the_units(unit: str, tmp_path: Path) -> None:
    text = (units.UNITS / unit).read_text().replace("/usr/local/bin/nstance-agent", "/bin/true")
    (tmp_path / unit).write_text(text)
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit)], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in found.stderr.splitlines() if unit in line and "not found" not in line]
    assert complaints == []


def test_it_installs_its_units(tmp_path: Path) -> None:
    command = [*AGENT, "install-units", "--dir", str(tmp_path), "--program", "/opt/agent/bin/nstance-agent"]
    subprocess.run(command, check=True, timeout=60)
    for unit in ("nstance-agent.service", "nstance-agent-shutdown.service"):
        text = (units.UNITS / unit).read_text()
        assert (tmp_path / unit).read_text() == text.replace("ExecStart=/usr/local/bin", "ExecStart=/opt/agent/bin")
        assert (tmp_path / unit).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--program", "nstance-agent"], "expected an absolute path"),
        (["--dir", "/nonexistent"], "failed to install the systemd units"),
    ],
)
def test_units_that_cannot_be_installed(arguments: list[str], message: str) -> None:
    done = subprocess.run([*AGENT, "install-units", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert message in done.stderr
