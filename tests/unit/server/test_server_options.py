"""The server's command line: what cannot be is a usage error, at once and in one line."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from nstance.server import options

RUN = ["--shard", "dev", "--storage", "file", "--bucket", "b"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--port-offset", "99999"], "--port-offset: expected ports from 1 to 65535"),
        (["--port-offset", "-32000"], "--port-offset: expected ports from 1 to 65535"),
        (["--port-offset", "56542"], "--port-offset: expected ports from 1 to 65535"),
        (["--port-offset", "x"], "--port-offset"),
        (["--advertise-host", "a b/../"], "--advertise-host: expected a host name or an IP address, found 'a b/../'"),
        (["--advertise-host", "[::1]"], "--advertise-host"),
        (["--advertise-host", "host:80"], "--advertise-host"),
        (["--advertise-host", "-x"], "--advertise-host"),
        (["--id", "A"], "--id"),
    ],
)
def test_what_cannot_be_is_a_usage_error(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options.parse([*RUN, *arguments], version="1")
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "2001:db8::1", "server-1.example.com", "localhost", ""])
def test_hosts(host: str) -> None:
    assert options.parse([*RUN, f"--advertise-host={host}"], version="1").advertise_host == host


@pytest.mark.parametrize("offset", [0, 100, -8989, 56541])
def test_offsets(offset: int) -> None:
    assert options.parse([*RUN, f"--port-offset={offset}"], version="1").port_offset == offset


@pytest.mark.parametrize("program", ["nstance-dev-s3", "nstance-dev-k8s", "nstance-sim", "nstance-server"])
def test_every_program_says_its_version(program: str) -> None:
    path = Path(sys.executable).with_name(program)
    if not path.exists():
        pytest.skip(f"needs {program} beside the interpreter: make install")
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert output.strip() == f"{program} {metadata.version('nstance')}"


def test_a_fatal_error_says_that_it_waits_before_it_exits(tmp_path: Path) -> None:
    config = tmp_path / "bucket/shard/dev/config.jsonc"
    config.parent.mkdir(parents=True)
    config.write_text(
        '{"cluster": {"id": "demo"}, "shard": {"infra": {"provider": "process"}, "bind": {"agent_addr": ":65000"},'
        ' "error_exit_jitter": {"min_delay": "100ms", "max_delay": "200ms"}}}'
    )
    command = [sys.executable, "-m", "nstance.server.main", "--shard=dev", "--storage=file", "--port-offset=1000"]
    done = subprocess.run(
        [*command, f"--bucket={tmp_path / 'bucket'}", f"--cachedir={tmp_path / 'cache'}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "NSTANCE_ENCRYPTION_KEY": "thisisatest32bytekey123456789012"},
    )
    assert done.returncode == 1
    assert "nstance-server: --port-offset: expected ports from 1 to 65535 after shifting :65000 by 1000" in done.stderr
    assert "exiting in 0 s, so that servers do not restart at the same time" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_endless_file_is_rejected_as_too_large(tmp_path: Path) -> None:
    """It is not read completely first."""
    endless = tmp_path / "endless.jsonc"
    endless.touch()
    os.truncate(endless, 1 << 40)
    command = [sys.executable, "-m", "nstance.server.main", "--validate", str(endless)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert "endless.jsonc" in found.stderr
    assert "Traceback" not in found.stderr
