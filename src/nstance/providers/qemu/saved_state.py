"""Saved machine states: a booted machine, stopped at one moment, that new VMs continue from.

    {folder}/machine.json   what it was saved with; a machine that differs cannot continue it
    {folder}/memory         the memory and devices
    {folder}/disk.qcow2     the disk of the same moment

The trap: all machines that continue from it share entropy, clock, MAC address and identity. The guest must renew them
when it finds its seed, which is why a state is saved while the seed is empty. `deploy/vm/guest.py` does this.
"""

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from nstance.providers import errors, machine_size
from nstance.providers.machine_size import MachineSize
from nstance.providers.qemu.acceleration import Acceleration
from nstance.providers.qemu.machine import DISK, Boot

RECORD = "machine.json"
MEMORY = "memory"
_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    qemu: str  # version
    acceleration: str
    size: str
    kernel: str = ""
    initrd: str = ""
    append: str = ""

    def boot(self, folder: Path) -> Boot:
        return Boot(
            kernel=self.kernel, initrd=self.initrd, append=self.append, memory_file=str((folder / MEMORY).absolute())
        )

    @property
    def machine_size(self) -> MachineSize:
        return machine_size.parse(self.size)

    def check_size(self, found: MachineSize, folder: Path) -> None:
        if found != self.machine_size:
            raise errors.PermanentError(
                f"expected instance type {self.size}, with which the state in {folder} was saved, found {found}",
                parameter="instance_type",
            )


def write(folder: Path, state: SavedState) -> None:
    (folder / RECORD).write_text(json.dumps(asdict(state), indent=1) + "\n")


def read(folder: Path, *, binary: str, acceleration: Acceleration) -> SavedState:
    """Raises PermanentError for a state that a machine of this host cannot continue."""
    try:
        state = SavedState(**json.loads((folder / RECORD).read_bytes()))
    except (OSError, ValueError, TypeError) as problem:
        raise _error(f"expected a saved machine state in {folder}, found none: {problem}") from None
    if missing := [name for name in (MEMORY, DISK) if not (folder / name).is_file()]:
        raise _error(f"expected a saved machine state in {folder}, but it has no {missing[0]}")
    found = (version(binary), acceleration.value)
    if (state.qemu, state.acceleration) != found:
        raise _error(
            f"expected a machine state saved by QEMU {found[0]} with {found[1]}, found QEMU {state.qemu} with "
            f"{state.acceleration} in {folder}: save it again (python -m nstance.providers.qemu.save_state --help)"
        )
    return state


def version(binary: str) -> str:
    try:
        answer = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True
        )
    except subprocess.SubprocessError as problem:
        raise errors.UnavailableError(f"{binary} --version failed: {problem}") from problem
    return answer.stdout.partition("version ")[2].partition(" ")[0].strip()


def _error(message: str) -> errors.PermanentError:
    return errors.PermanentError(message, parameter="State")
