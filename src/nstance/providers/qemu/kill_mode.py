"""Whether systemd would end the VMs together with the server.

The trap: a VM has a session of its own, but stays in the control group of the service that started it. With systemd's default,
every restart of the server, as for an upgrade, would end the whole fleet of the host.
"""

import os
import subprocess
from pathlib import Path

TIMEOUT_SECONDS = 10.0
_SAFE = ("process", "none")


def why_vms_end(cgroup: Path = Path("/proc/self/cgroup"), systemctl: str = "systemctl", pid: int | None = None) -> str:
    """Empty if they stay, and if this process is no service."""
    try:
        unit = cgroup.read_text().strip().rpartition("/")[2]
    except OSError:
        return ""
    if not unit.endswith(".service"):
        return ""
    try:
        command = [systemctl, "show", "--property=MainPID", "--property=KillMode", unit]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    found = dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)
    if found.get("MainPID") != str(pid or os.getpid()) or found.get("KillMode", "process") in _SAFE:
        return ""
    return (
        f"expected KillMode=process in the unit {unit}, found {found['KillMode']}: all VMs would end when the server is "
        "restarted; see docs/qemu.md#as-a-service"
    )
