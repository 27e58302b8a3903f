"""Instance types of hypervisors: `cpu:4,memory:8192,disk:50` (cores, MiB, GiB)."""

import re
from dataclasses import dataclass

from nstance.providers import errors

_PATTERN = re.compile(r"cpu:([1-9][0-9]{0,3}),memory:([1-9][0-9]{0,7})(?:,disk:([1-9][0-9]{0,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSize:
    cpus: int
    memory_mib: int
    disk_gib: int | None = None  # as the image has it

    def __str__(self) -> str:
        disk = "" if self.disk_gib is None else f",disk:{self.disk_gib}"
        return f"cpu:{self.cpus},memory:{self.memory_mib}{disk}"


def parse(text: str) -> MachineSize:
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise errors.PermanentError(
            f'expected an instance type such as "cpu:4,memory:8192,disk:50", found {text!r}', parameter="instance_type"
        )
    cpus, memory, disk = match.groups()
    return MachineSize(cpus=int(cpus), memory_mib=int(memory), disk_gib=int(disk) if disk else None)
