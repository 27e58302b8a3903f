"""KVM or emulation, and the CPU model that goes with it.

The trap: `/dev/kvm` opens on machines where no ordinary kernel runs in it (PVM: a KVM without hardware virtualization).
So the processor must have the feature too; otherwise VMs would hang in their boot loader.
"""

import enum
import fcntl
import os
from pathlib import Path

_KVM_GET_API_VERSION = 0xAE00
_API_VERSION = 12


class Acceleration(enum.StrEnum):
    KVM = "kvm"
    TCG = "tcg"

    @property
    def arguments(self) -> tuple[str, ...]:
        if self is Acceleration.KVM:
            return ("-accel", "kvm", "-cpu", "host")
        return ("-accel", "tcg,thread=multi", "-cpu", "max")


def detect(device: Path = Path("/dev/kvm"), cpuinfo: Path = Path("/proc/cpuinfo")) -> Acceleration:
    return Acceleration.KVM if why_not_kvm(device, cpuinfo) == "" else Acceleration.TCG


def why_not_kvm(device: Path = Path("/dev/kvm"), cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Empty if KVM can be used."""
    try:
        opened = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError as problem:
        return f"{device} cannot be opened: {problem.strerror}"
    try:
        version = fcntl.ioctl(opened, _KVM_GET_API_VERSION)
    except OSError as problem:
        return f"{device} is no KVM: {problem.strerror}"
    finally:
        os.close(opened)
    if version != _API_VERSION:
        return f"expected version {_API_VERSION} of the KVM API, found {version}"
    flags = next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "")
    if os.uname().machine == "x86_64" and not {"vmx", "svm"} & set(flags.split()):
        return "the processor shows neither vmx nor svm: this KVM runs no ordinary guests"
    return ""
