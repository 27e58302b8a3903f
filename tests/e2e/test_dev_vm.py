"""`make test-vm`: real VMs boot, register and receive files, and are lost in every way; the run itself checks the times.

It needs QEMU and the guest of `make vm-image`, named by NSTANCE_VM_IMAGES; `make test-vm` sets it. Otherwise it is skipped.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contracts.provider_worlds import request, scope
from nstance.clock import SystemClock, SystemRng
from nstance.dev import leftovers, vms
from nstance.dev.vms import Break
from nstance.model.ids import InstanceId
from nstance.providers import port
from nstance.providers.qemu import machine
from nstance.providers.qemu import provider as qemu
from nstance.providers.qemu.settings import QemuSettings
from support.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def images() -> str:
    found = os.environ.get("NSTANCE_VM_IMAGES", "")
    if not found or not (Path(found) / "state").is_dir():
        pytest.skip("needs a guest: run 'make test-vm', which builds it")
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("needs the program qemu-system-x86_64: install QEMU")
    return found


USERDATA = b"""#!/bin/sh
echo "entropy: $(head -c 16 /dev/urandom | busybox xxd -p)"
echo "address: $(cat /sys/class/net/eth0/address)"
echo "name: $(hostname)"
echo "time: $(date +%s)"
"""


async def test_vms_of_one_saved_state_share_nothing(images: str, tmp_path: Path) -> None:
    """Both continue the same memory: what must differ differs, and the clock is right."""
    settings = QemuSettings(dir=tmp_path / "instances", images=Path(images))
    door = qemu.open_qemu(scope(), SystemClock(), SystemRng(), settings)
    asked = [request(args={"State": "state"}, instance_type="", userdata=USERDATA) for _ in range(2)]
    try:
        await asyncio.gather(*(door.create(each) for each in asked))

        def shown(id: InstanceId) -> dict[str, str]:
            return dict(
                re.findall(r"^(entropy|address|name|time): (\S+)\r?$", vms.console(settings.dir / id), re.MULTILINE)
            )

        for each in asked:
            await eventually(lambda id=each.id: "time" in shown(id), seconds=120)
        found = [shown(each.id) for each in asked]
    finally:
        for each in asked:
            assert await door.delete(each.id, None) is port.Status.DELETED
        await door.close()
    for each, guest in zip(asked, found, strict=True):
        assert (guest["name"], guest["address"]) == (each.id, machine.mac_address(each.id))
        assert abs(time.time() - float(guest["time"])) < 60
    assert found[0]["entropy"] != found[1]["entropy"]


def test_vms_are_lost_and_replaced(images: str, tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    # A guest in emulation may take two minutes to boot on a busy machine. Until then it is only rebooting.
    config = tmp_path / "config-vm.jsonc"
    text = (ROOT / "examples" / "config-vm.jsonc").read_text()
    patient = text.replace(
        '"suspect_after": "20s", "dead_after": "40s"', '"suspect_after": "120s", "dead_after": "130s"'
    )
    assert patient != text
    config.write_text(patient)
    command = [sys.executable, "-m", "nstance.dev", "--once", "--ports", "auto", "--dir", str(folder)]
    command += ["--config", str(config), "--vm-images", images, "--within", "240"]
    try:
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=840, check=False)
    finally:
        leftovers.end_servers(folder / "pids")
        left = leftovers.end_agents(folder / "instances")
    shown = [line for line in answer.stdout.splitlines() if " dev      | " in line]
    print("\n".join(shown))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    for how in (Break.PANIC, Break.POWER_OFF, Break.POWER_CUT, Break.FREEZE, Break.CUT_NETWORK, Break.REBOOT):
        assert any(f"| {how} of vmx-" in line for line in shown), how
    assert len(re.findall(r"replaced by vmx-", "\n".join(shown))) == 5
    assert "the same instance" in shown[-3] + shown[-4]
    assert left == 0, "it ends its VMs"
