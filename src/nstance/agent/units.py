"""The agent's systemd units, installed by the agent itself: a userdata script has no room for them."""

import os
from pathlib import Path

UNITS = Path(__file__).parent / "systemd"
PROGRAM = "/usr/local/bin/nstance-agent"  # as written in the unit


def install(directory: Path, program: str) -> list[Path]:
    """Write the units for the agent at `program`; a reader never sees half a unit. Raises OSError."""
    installed = []
    for source in sorted(UNITS.glob("*.service")):
        target = directory / source.name
        new = target.with_name(f".{target.name}.new")
        new.write_text(source.read_text().replace(f"ExecStart={PROGRAM}", f"ExecStart={program}"))
        new.chmod(0o644)
        os.replace(new, target)
        installed.append(target)
    return installed
