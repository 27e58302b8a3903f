"""What `make dev-vm` reads of its VMs."""

from pathlib import Path

import pytest

from nstance.dev import vms
from nstance.dev.vms import Break
from nstance.providers.qemu import events, machine, qmp


@pytest.mark.parametrize(
    ("console", "has"),
    [
        ("", False),
        ("nstance: files installed: motd demo.env\n", True),
        ("nstance: files installed: demo.env\n", False),
        ("nstance: files installed: motd\nnstance: files installed: other\n", False),
        ("the text nstance: files installed: motd\n", False),
    ],
)
def test_files_that_the_guest_has_installed(console: str, has: bool, tmp_path: Path) -> None:
    (tmp_path / machine.CONSOLE).write_text(console)
    assert vms.has_file(tmp_path, "motd") is has


def test_when_a_vm_ended(tmp_path: Path) -> None:
    assert vms.console(tmp_path) == ""
    assert vms.ended_at(tmp_path) is None
    lines = [
        '{"timestamp": {"seconds": 10, "microseconds": 500000}, "event": "SHUTDOWN", "data": {}}',
        '{"event": "STOP"}',
    ]
    (tmp_path / events.OUTPUT).write_text("\n".join(lines) + "\n")
    assert vms.ended_at(tmp_path) == 10.5


def test_every_way_is_explained_and_a_dead_vm_is_an_error(tmp_path: Path) -> None:
    assert set(vms.WHAT_FOLLOWS) == set(Break)
    guide = vms.guide("temp/instances", "vmx-1", 7)
    assert all(how in guide for how in Break)
    with pytest.raises(qmp.QmpError, match="does not answer"):
        vms.break_vm(tmp_path, Break.PANIC)
