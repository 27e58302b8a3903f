"""A VM's QEMU command line, and the files in its directory."""

import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path

from nstance.providers.machine_size import MachineSize
from nstance.providers.qemu import events, qmp
from nstance.providers.qemu.acceleration import Acceleration

CONSOLE = "console.log"
DISK = "disk.qcow2"
SEED = "seed.iso"
SEED_BYTES = 2 * 1024 * 1024  # always, because a disk of a restored machine keeps its size


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """How a machine comes up: by the boot loader on its disk, by a kernel beside it, or from a saved state."""

    kernel: str = ""
    initrd: str = ""
    append: str = ""
    memory_file: str = ""  # of a saved state

    def arguments(self) -> list[str]:
        out: list[str] = []
        for flag, value in (("-kernel", self.kernel), ("-initrd", self.initrd), ("-append", self.append)):
            out += [flag, value] if value else []
        # Not "file:", which QEMU has only since 8.2.
        return out + (["-incoming", f"exec:cat {shlex.quote(self.memory_file)}"] if self.memory_file else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """All paths that are not absolute are in the VM's directory, where QEMU is started."""

    name: str
    binary: str
    acceleration: Acceleration
    size: MachineSize
    boot: Boot
    bridge: str = ""  # empty: user-mode network

    def command(self) -> list[str]:
        net = f"bridge,id=net,br={_escaped(self.bridge)}" if self.bridge else "user,id=net"
        return [
            self.binary,
            *("-name", _escaped(self.name)),
            *("-nodefaults", "-no-user-config", "-display", "none"),
            *("-M", "q35", *self.acceleration.arguments),
            *("-m", str(self.size.memory_mib), "-smp", str(self.size.cpus)),
            # The clock of the host, also in a restored machine.
            *("-rtc", "base=utc,clock=host"),
            # QEMU ends with its guest, so that a dead guest is a dead process. A reboot keeps it.
            *("-action", "reboot=reset,shutdown=poweroff,panic=shutdown,watchdog=reset"),
            *("-chardev", f"file,id=console,path={CONSOLE},append=on", "-serial", "chardev:console"),
            *("-chardev", f"socket,id=qmp,path={qmp.SOCKET},server=on,wait=off", "-mon", "chardev=qmp,mode=control"),
            *("-chardev", f"pipe,id=events,path={events.PIPE}", "-mon", "chardev=events,mode=control"),
            *("-drive", f"if=none,id=disk,file={DISK},format=qcow2,discard=unmap"),
            *("-device", "virtio-blk-pci,drive=disk,bootindex=1"),
            *("-drive", f"if=none,id=seed,file={SEED},format=raw,readonly=on", "-device", "virtio-blk-pci,drive=seed"),
            *("-netdev", net, "-device", f"virtio-net-pci,netdev=net,mac={mac_address(self.name)},romfile="),
            *("-device", "virtio-rng-pci", "-device", "pvpanic", "-device", "vmgenid,guid=auto"),
            *self.boot.arguments(),
        ]


def mac_address(name: str) -> str:
    """Derived from the instance ID: locally administered, the same after every start."""
    digest = hashlib.sha256(name.encode()).digest()
    return ":".join(f"{each:02x}" for each in (0x02, *digest[:5]))


def memory_of(command: tuple[str, ...]) -> int:
    """MiB that a VM was started with."""
    try:
        return int(command[command.index("-m") + 1])
    except (ValueError, IndexError):
        return 0


def padded(seed: bytes) -> bytes:
    return seed.ljust(SEED_BYTES, b"\0")


def make_files(directory: Path, seed: bytes) -> None:
    """Everything but the disk."""
    (directory / SEED).write_bytes(padded(seed))
    (directory / events.INPUT).write_bytes(events.HELLO)
    (directory / events.OUTPUT).touch()


def _escaped(text: str) -> str:
    """A comma separates QEMU's options; a doubled one does not."""
    return text.replace(",", ",,")
