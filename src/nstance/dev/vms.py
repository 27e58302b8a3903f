"""The VMs of `make dev-vm`, and how to break one: `python -m nstance.dev.vms panic temp/dev-vm/instances/ID`."""

import argparse
import re
import sys
from enum import StrEnum
from pathlib import Path

from nstance.model.ids import InstanceId
from nstance.providers.qemu import events, machine, qmp

_COMMAND_WIDTH = 12


class Break(StrEnum):
    PANIC = "panic"
    POWER_OFF = "power-off"
    POWER_CUT = "power-cut"
    FREEZE = "freeze"
    RESUME = "resume"
    CUT_NETWORK = "cut-network"
    JOIN_NETWORK = "join-network"
    REBOOT = "reboot"


WHAT_FOLLOWS = {
    Break.PANIC: "its kernel panics: QEMU ends, the instance is replaced at once",
    Break.POWER_OFF: "the guest shuts down: its agent says goodbye, the instance is replaced at once",
    Break.POWER_CUT: "QEMU ends: the instance is replaced at once",
    Break.FREEZE: "the guest stands still: its agent is unresponsive, a replacement is made, it is removed after dead_after",
    Break.RESUME: "it goes on: an instance that was only suspect is running again",
    Break.CUT_NETWORK: "no packet passes: the same as freeze",
    Break.JOIN_NETWORK: "packets pass again",
    Break.REBOOT: "the guest boots again: the instance stays",
}


def break_vm(directory: Path, how: Break) -> None:
    """Raises QmpError."""
    with qmp.monitor(directory) as monitor:
        match how:
            case Break.PANIC:
                monitor.execute("inject-nmi")  # the guest's kernel has unknown_nmi_panic
            case Break.POWER_OFF:
                monitor.execute("system_powerdown")
            case Break.POWER_CUT:
                monitor.execute("quit")
            case Break.FREEZE:
                monitor.execute("stop")
            case Break.RESUME:
                monitor.execute("cont")
            case Break.CUT_NETWORK | Break.JOIN_NETWORK:
                monitor.execute("set_link", name="net", up=how is Break.JOIN_NETWORK)
            case Break.REBOOT:
                monitor.execute("system_reset")


def console(directory: Path) -> str:
    try:
        return (directory / machine.CONSOLE).read_text(errors="replace")
    except FileNotFoundError:
        return ""


def has_file(directory: Path, name: str) -> bool:
    """Whether the guest has said that it installed a file."""
    lines = re.findall(r"^nstance: files installed: (.*)$", console(directory), re.MULTILINE)
    return bool(lines) and name in lines[-1].split()


def ended_at(directory: Path) -> float | None:
    """When QEMU announced the end of the VM, on the wall clock."""
    for event in reversed(events.read(directory)):
        if event.get("event") in ("GUEST_PANICKED", "SHUTDOWN"):
            stamp = event["timestamp"]
            return float(stamp["seconds"] + stamp["microseconds"] / 1e6)
    return None


def guide(instances: str, id: InstanceId | str, leader: int) -> str:
    rows = "\n".join(f"  {how:<{_COMMAND_WIDTH}}  {WHAT_FOLLOWS[how]}" for how in Break)
    return (
        "all VMs are running. Break one, in a second terminal:\n"
        f"  {sys.executable} -m nstance.dev.vms HOW {instances}/{id}\n"
        f"{rows}\n"
        f"kill -9 {leader} crashes the leader: VMs stay. The console of a VM: {instances}/{id}/{machine.CONSOLE}\n"
        "Ctrl+C stops everything."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m nstance.dev.vms",
        description="Break a VM of the provider qemu.",
        epilog="example: python -m nstance.dev.vms panic temp/dev-vm/instances/vmx-…",
    )
    parser.add_argument("how", type=Break, choices=list(Break), metavar="HOW", help=", ".join(Break))
    parser.add_argument("directory", type=Path, help="the VM's directory")
    options = parser.parse_args()
    try:
        break_vm(options.directory, options.how)
    except (qmp.QmpError, OSError) as problem:
        sys.exit(f"vms: failed to {options.how} {options.directory.name}: {problem}")


if __name__ == "__main__":
    main()
