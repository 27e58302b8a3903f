"""What the configuration says about the host."""

from dataclasses import dataclass
from pathlib import Path

from nstance.providers.qemu.acceleration import Acceleration

BINARY = "qemu-system-x86_64"


@dataclass(frozen=True, slots=True, kw_only=True)
class QemuSettings:
    dir: Path
    images: Path | None = None
    binary: str = BINARY
    acceleration: Acceleration = Acceleration.TCG
    bridge: str = ""
    memory_mib: int = 0  # for all VMs together; 0: most of the host's
    shutdown_seconds: float = 0.0  # for a guest to power off before it is ended
