"""`python -m nstance.providers.qemu.save_state`: boots a machine and saves its state, for VMs that start in seconds."""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from nstance.clock import SystemClock
from nstance.providers import errors, machine_size
from nstance.providers.machine_size import MachineSize
from nstance.providers.qemu import acceleration, disks, machine, qmp, saved_state
from nstance.providers.qemu.acceleration import Acceleration
from nstance.providers.qemu.machine import Boot, Machine

_clock = SystemClock()
_STEP_SECONDS = 0.1
_SAVE_SECONDS = 300.0
_MAX_BANDWIDTH = 1 << 40  # bytes a second: QEMU's default is that of a slow network
_EXAMPLE = """example:
  python -m nstance.providers.qemu.save_state --image disk.qcow2 --kernel vmlinuz --initrd initrd.gz \\
    --append console=ttyS0 --size cpu:1,memory:256 --until "waiting for the seed" state/

The machine boots with an empty seed. When its console shows the text of --until, its memory and disk are saved.
Every VM with args {"State": "state/"} continues from there. So the guest must wait for its seed at that moment, and
then renew its entropy, clock and MAC address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    image: Path
    boot: Boot
    size: MachineSize
    binary: str
    acceleration: Acceleration


class SaveError(Exception):
    """The machine did not boot as far as expected, or QEMU failed to save it."""


def save(source: Source, folder: Path, *, until: str, timeout: float) -> None:
    """The folder appears complete or not at all; an older one is replaced."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as text:
        draft = Path(text)
        machine.make_files(draft, b"")
        disks.create_overlay(draft / machine.DISK, source.image.absolute(), gib=source.size.disk_gib)
        planned = Machine(
            name="saved-state",
            binary=source.binary,
            acceleration=source.acceleration,
            size=source.size,
            boot=source.boot,
        )
        with (draft / "qemu.log").open("wb") as log:
            process = subprocess.Popen(planned.command(), cwd=draft, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _wait_for_text(draft, process, until, timeout)
            _write_memory(draft, process)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
        state = saved_state.SavedState(
            qemu=saved_state.version(source.binary),
            acceleration=source.acceleration.value,
            size=str(source.size),
            kernel=source.boot.kernel,
            initrd=source.boot.initrd,
            append=source.boot.append,
        )
        saved_state.write(draft, state)
        for name in (saved_state.RECORD, saved_state.MEMORY, machine.DISK):
            (draft / name).chmod(0o600)
        older = draft / "older"
        if folder.exists():
            folder.rename(older)
        complete = draft / "complete"
        complete.mkdir()
        for name in (saved_state.RECORD, saved_state.MEMORY, machine.DISK):
            (draft / name).rename(complete / name)
        complete.rename(folder)


def _wait_for_text(draft: Path, process: subprocess.Popen[bytes], until: str, timeout: float) -> None:
    deadline = _clock.monotonic() + timeout
    console = draft / machine.CONSOLE
    while not console.exists() or until not in console.read_text(errors="replace"):
        shown = console.read_text(errors="replace")[-2000:] if console.exists() else ""
        if process.poll() is not None:
            printed = (draft / "qemu.log").read_text(errors="replace")
            raise SaveError(f"QEMU ended before its console showed {until!r}: {printed}\n{shown}")
        if _clock.monotonic() > deadline:
            raise SaveError(f"expected {until!r} on the console within {timeout:g} s, found:\n{shown}")
        time.sleep(_STEP_SECONDS)


def _write_memory(draft: Path, process: subprocess.Popen[bytes]) -> None:
    # Not stopped first: a machine that is saved while it stands still stands still when it is restored.
    with qmp.monitor(draft, timeout=30.0) as monitor:
        monitor.execute("migrate-set-parameters", **{"max-bandwidth": _MAX_BANDWIDTH, "downtime-limit": 2000})
        monitor.execute("migrate", uri=f"exec:cat > {saved_state.MEMORY}")
        deadline = _clock.monotonic() + _SAVE_SECONDS
        while True:
            status = monitor.execute("query-migrate")
            if status.get("status") == "completed":
                break
            if status.get("status") in ("failed", "cancelled"):
                raise SaveError(f"QEMU failed to save its state: {status.get('error-desc', 'no reason given')}")
            if _clock.monotonic() > deadline:
                raise SaveError(f"expected a saved state within {_SAVE_SECONDS:g} s, found {status}")
            time.sleep(_STEP_SECONDS)
        monitor.execute("quit")
    process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m nstance.providers.qemu.save_state",
        description="Boot a machine and save its state.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="where the state is saved")
    parser.add_argument("--image", type=Path, required=True, help="the disk image")
    parser.add_argument("--kernel", default="", help="a kernel beside the image")
    parser.add_argument("--initrd", default="")
    parser.add_argument("--append", default="", help="the kernel's command line")
    parser.add_argument("--size", type=machine_size.parse, required=True, help="such as cpu:1,memory:256")
    parser.add_argument("--until", required=True, help="the text on the console that means: save now")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds until that text (300)")
    parser.add_argument("--binary", default="qemu-system-x86_64")
    parser.add_argument("--accel", choices=[*Acceleration], default=None, help="default: KVM if it can be used")
    options = parser.parse_args()
    if shutil.which(options.binary) is None:
        sys.exit(f"save_state: expected the program {options.binary}, found none; install QEMU")
    source = Source(
        image=options.image,
        boot=Boot(
            kernel=str(Path(options.kernel).absolute()) if options.kernel else "",
            initrd=str(Path(options.initrd).absolute()) if options.initrd else "",
            append=options.append,
        ),
        size=options.size,
        binary=options.binary,
        acceleration=Acceleration(options.accel) if options.accel else acceleration.detect(),
    )
    try:
        save(source, options.folder.absolute(), until=options.until, timeout=options.timeout)
    except (SaveError, errors.ProviderError, qmp.QmpError, OSError) as problem:
        sys.exit(f"save_state: {problem}")


if __name__ == "__main__":
    main()
