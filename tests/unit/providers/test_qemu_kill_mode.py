"""A server that systemd would end together with its VMs."""

from pathlib import Path

import pytest

from nstance.providers.qemu import kill_mode


@pytest.mark.parametrize(
    ("cgroup", "answer", "problem"),
    [
        ("0::/system.slice/nstance-server.service", "MainPID=7\nKillMode=control-group\n", "found control-group"),
        ("0::/system.slice/nstance-server.service", "MainPID=7\nKillMode=mixed\n", "found mixed"),
        ("0::/system.slice/nstance-server.service", "MainPID=7\nKillMode=process\n", ""),
        ("0::/system.slice/runner.service", "MainPID=8\nKillMode=control-group\n", ""),  # started by another service
        ("0::/user.slice/user-0.slice/session-1.scope", "MainPID=7\nKillMode=control-group\n", ""),
        ("0::/", "MainPID=7\nKillMode=control-group\n", ""),
        ("0::/system.slice/nstance-server.service", "", ""),
    ],
)
def test_vms_must_outlive_the_service(cgroup: str, answer: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(f"{cgroup}\n")
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f"#!/bin/sh\nprintf '%s' '{answer}'\n")
    systemctl.chmod(0o755)
    found = kill_mode.why_vms_end(tmp_path / "cgroup", str(systemctl), pid=7)
    assert problem in found
    assert bool(found) == bool(problem)


def test_without_systemd_there_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/system.slice/nstance-server.service\n")
    assert kill_mode.why_vms_end(tmp_path / "cgroup", str(tmp_path / "none"), pid=7) == ""
    assert kill_mode.why_vms_end(tmp_path / "none") == ""
