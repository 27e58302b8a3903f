"""PID 1 of the minimal guest: waits for its seed, becomes an instance and runs the agent.

A state saved while it waits is restored into many VMs, which then share memory, entropy, clock and MAC address. So nothing
random is drawn before the seed is there, and everything that must differ is renewed from it first. The agent runs in a
fork, because a fork renews the random state of OpenSSL.
"""

import base64
import contextlib
import ctypes
import fcntl
import glob
import json
import os
import random
import re
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, "/usr/lib/nstance")

SEED_DISK = "/dev/vdb"
SEED = Path("/run/seed")
DONE = Path("/var/lib/nstance/instance-id")
ENVIRONMENT = Path("/etc/nstance-agent.env")
BUSYBOX = "/bin/busybox"
WAIT_SECONDS = 0.1
RESTART_SECONDS = 1.0
GOODBYE_SECONDS = 3.0

_BLKFLSBUF = 0x1261
_RNDADDENTROPY = 0x40085203
_RNDRESEEDCRNG = 0x5207
_RTC_RD_TIME = 0x80247009
_POWER_OFF = 0x4321FEDC
_EVENT = struct.Struct("llHHi")
_KEY, _KEY_POWER = 1, 116


def say(text: str) -> None:
    print(f"nstance: {text}", flush=True)


def run(*command: str) -> int:
    return subprocess.run(command, check=False).returncode


def mount_folders() -> None:
    for kind, folder in (("tmpfs", "/run"), ("tmpfs", "/tmp"), ("devpts", "/dev/pts")):
        os.makedirs(folder, exist_ok=True)
        run(BUSYBOX, "mount", "-t", kind, kind, folder)
    SEED.mkdir()
    run(BUSYBOX, "ip", "link", "set", "lo", "up")


def wait_for_seed() -> dict[str, str]:
    """The disk is empty in a machine whose state is being saved. Its buffers are dropped, because it changes unseen."""
    while True:
        with open(SEED_DISK, "rb") as disk:
            fcntl.ioctl(disk, _BLKFLSBUF)
            disk.seek(16 * 2048 + 1)
            is_filled = disk.read(5) == b"CD001"
        if is_filled and run(BUSYBOX, "mount", "-t", "iso9660", "-o", "ro", SEED_DISK, str(SEED)) == 0:
            return json.loads((SEED / "meta-data").read_bytes())
        time.sleep(WAIT_SECONDS)


def renew(seed: dict[str, str]) -> None:
    """What clones of one saved state must not share: entropy, clock, name."""
    entropy = base64.b64decode(seed.get("random-seed", ""))
    with open("/dev/urandom", "wb") as pool:
        if entropy:
            fcntl.ioctl(pool, _RNDADDENTROPY, struct.pack("ii", len(entropy) * 8, len(entropy)) + entropy)
        fcntl.ioctl(pool, _RNDRESEEDCRNG)
    random.seed()
    with contextlib.suppress(OSError):
        with open("/dev/rtc0", "rb") as clock:
            second, minute, hour, day, month, year, *_ = struct.unpack(
                "9i", fcntl.ioctl(clock, _RTC_RD_TIME, bytes(36))
            )
        import calendar

        time.clock_settime(
            time.CLOCK_REALTIME, calendar.timegm((year + 1900, month + 1, day, hour, minute, second, 0, 0, 0))
        )
    name = seed["local-hostname"]
    Path("/proc/sys/kernel/hostname").write_text(name)
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")


def open_network(seed: dict[str, str]) -> None:
    if mac := seed.get("mac-address"):
        run(BUSYBOX, "ip", "link", "set", "eth0", "address", mac)
    run(BUSYBOX, "ip", "link", "set", "eth0", "up")
    while run(BUSYBOX, "udhcpc", "-i", "eth0", "-n", "-q", "-t", "5", "-T", "1", "-s", "/usr/lib/nstance/dhcp.sh") != 0:
        say("failed to get an address by DHCP, trying again")


def run_userdata(seed: dict[str, str]) -> None:
    """Once per instance, as cloud-init does: a reboot runs it no second time."""
    if DONE.exists() and DONE.read_text() == seed["instance-id"]:
        return
    script = Path("/run/user-data")
    script.write_bytes((SEED / "user-data").read_bytes())
    script.chmod(0o700)
    if not script.read_bytes().startswith(b"#!"):
        say("expected userdata that starts with #!: this guest has no cloud-init; nothing was run")
    elif (code := run(str(script))) != 0:
        say(f"userdata failed with exit code {code}")
    DONE.parent.mkdir(parents=True, exist_ok=True)
    DONE.write_text(seed["instance-id"])
    os.sync()


def read_environment() -> dict[str, str]:
    """`NAME=value` or `NAME="value"` per line, as systemd reads it."""
    found = re.findall(r"^([A-Z0-9_]+)=(.*)$", ENVIRONMENT.read_text(), re.MULTILINE) if ENVIRONMENT.exists() else []
    return {name: json.loads(text) if text.startswith('"') else text for name, text in found}


def start_agent() -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        random.seed()
        os.environ.update(read_environment())
        from nstance.agent.main import main

        main([])
    except BaseException as problem:
        say(f"the agent failed: {problem!r}")
    finally:
        os._exit(1)


def power_buttons() -> list[int]:
    return [os.open(path, os.O_RDONLY | os.O_NONBLOCK) for path in glob.glob("/dev/input/event*")]


def is_pressed(button: int) -> bool:
    with contextlib.suppress(OSError):
        event = os.read(button, _EVENT.size)
        *_, kind, code, value = _EVENT.unpack(event)
        return (kind, code, value) == (_KEY, _KEY_POWER, 1)
    return False


def supervise() -> None:
    """Keep the agent running until the power button is pressed; then stop it and switch the machine off."""
    buttons = power_buttons()
    agent, restart_at = start_agent(), 0.0
    while True:
        pressed, _, _ = select.select(buttons, [], [], 0.2)
        if any(is_pressed(button) for button in pressed):
            break
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                if pid == agent:
                    agent, restart_at = 0, time.monotonic() + RESTART_SECONDS
        if not agent and time.monotonic() >= restart_at:
            agent = start_agent()
    say("power button pressed: shutting down")
    if agent:
        Path("/run/nologin").touch()  # tells the agent that the machine stops, not only the agent
        os.kill(agent, signal.SIGTERM)
        deadline = time.monotonic() + GOODBYE_SECONDS
        while time.monotonic() < deadline and os.waitpid(agent, os.WNOHANG)[0] == 0:
            time.sleep(0.05)
    os.sync()
    ctypes.CDLL(None).reboot(_POWER_OFF)


def main() -> None:
    os.environ.update(PATH="/usr/sbin:/usr/bin:/sbin:/bin", HOME="/root", LANG="C.UTF-8")
    mount_folders()
    # Before the state is saved, so that no restored machine pays for it.
    import nstance.agent.lifecycle
    import nstance.agent.main
    import nstance.pki.peer
    import nstance.pki.proof  # noqa: F401
    from nstance.agent.credentials import key_generation

    # The agent makes its keys in a child, to keep this library out of its memory. Here it is in memory already, and a
    # new interpreter takes seconds in emulation.
    key_generation.make_in_child = key_generation.make

    say("waiting for the seed")
    seed = wait_for_seed()
    say(f"seed of {seed['instance-id']} found")
    renew(seed)
    open_network(seed)
    run_userdata(seed)
    say("starting the agent")
    supervise()


if __name__ == "__main__":
    main()
