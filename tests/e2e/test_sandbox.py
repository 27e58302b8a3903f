"""Sandboxes: userdata runs in a root of its own, and nothing of it stays."""

import glob
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nstance.dev.sandbox.sandbox import Sandbox, SandboxError
from support.eventually import eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not installed (apt-get install bubblewrap)"),
]

SERVICE = """[Service]
Type=notify
ExecStart=/usr/local/bin/ticker
Restart=always
"""


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Sandbox]:
    made = Sandbox(tmp_path / "vm", hostname="i-0123", environment={"PLATFORM": "it's"})
    yield made
    await made.stop()


async def test_userdata_runs_in_a_root_of_its_own(machine: Sandbox, tmp_path: Path) -> None:
    script = f"""#!/bin/sh
hostname; id -u; echo $PLATFORM
ls {tmp_path} && echo the host is visible
touch /usr/bin/x && echo the host can be changed
touch /usr/local/bin/x /etc/x /var/x && echo own places can be changed
echo "on the console" >>/dev/console
"""
    await machine.boot(script.encode())
    await eventually(lambda: "userdata ended" in machine.console)
    console = machine.console
    assert "i-0123\n0\nit's\n" in console
    assert "own places can be changed" in console
    assert "on the console" in console
    assert "the host" not in console
    assert not {"/usr/bin/x", "/etc/x"} & set(glob.glob("/usr/bin/x") + glob.glob("/etc/x"))


async def test_services_start_with_their_environment_and_again_when_they_end(machine: Sandbox) -> None:
    script = f"""#!/bin/sh
cat >/usr/local/bin/ticker <<'X'
#!/bin/sh
echo "tick $PLATFORM"
X
chmod +x /usr/local/bin/ticker
cat >/etc/systemd/system/ticker.service <<'X'
{SERVICE}X
systemctl daemon-reload
systemctl enable --now ticker.service && echo enabled
systemctl enable --now missing.service || echo "no such unit"
"""
    await machine.boot(script.encode())
    await eventually(lambda: machine.log("ticker.service").count("tick it's") >= 2)
    assert "enabled" in machine.console
    assert "expected the unit /etc/systemd/system/missing.service" in machine.console
    assert "no such unit" in machine.console


async def test_nothing_runs_after_a_stop(machine: Sandbox, tmp_path: Path) -> None:
    mark = f"sleep {os.getpid()}00"
    await machine.boot(f"#!/bin/sh\nsetsid {mark} &\necho started\n".encode())
    await eventually(lambda: "userdata ended" in machine.console)
    assert machine.is_running
    await eventually(lambda: _processes(mark))  # the userdata does not wait until its background process is sleep
    await machine.stop()
    assert not machine.is_running
    await eventually(lambda: not _processes(mark))
    assert not (tmp_path / "vm/root").exists()
    assert "started" in machine.console  # it can be read after the end


async def test_userdata_that_is_no_script_is_refused(machine: Sandbox) -> None:
    with pytest.raises(SandboxError, match="expected userdata that is a script"):
        await machine.boot(b"#cloud-config\n")


def _processes(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if line == mark:
            found.append(line)
    return found
