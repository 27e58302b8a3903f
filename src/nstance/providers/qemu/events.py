"""What QEMU wrote about the life of a VM: its events, in a file, also while no server ran.

A second monitor reads its only command from `events.in` and writes everything that happens to `events.out`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PIPE = "events"
INPUT = f"{PIPE}.in"
OUTPUT = f"{PIPE}.out"
HELLO = b'{"execute": "qmp_capabilities"}\n'
_TAIL_BYTES = 64 * 1024

# Reasons of the event SHUTDOWN, in the words of a person.
_REASONS = {
    "guest-shutdown": "the guest powered off",
    "guest-panic": "the guest's kernel panicked",
    "guest-reset": "the guest was reset and did not start again",
    "host-signal": "QEMU was terminated by a signal",
    "host-qmp-quit": "QEMU was asked to quit",
    "host-error": "QEMU failed",
}


def end_reason(directory: Path) -> str:
    """Why a VM whose process is gone ended."""
    for event in reversed(read(directory)):
        data = event.get("data")
        details: Mapping[str, Any] = data if isinstance(data, dict) else {}
        if event.get("event") == "GUEST_PANICKED":
            return _REASONS["guest-panic"]
        if event.get("event") == "SHUTDOWN":
            reason = str(details.get("reason", ""))
            return _REASONS.get(reason, f"QEMU ended: {reason}")
    return "QEMU ended without a word: it was killed or crashed"


def read(directory: Path) -> list[Mapping[str, Any]]:
    """The newest events. A line that is not complete, or was cut, is left out."""
    try:
        with (directory / OUTPUT).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).split(b"\n")
    except FileNotFoundError:
        return []
    found: list[Mapping[str, Any]] = []
    for line in lines:
        try:
            value = json.loads(line.strip(b"\0"))
        except ValueError:
            continue
        if isinstance(value, dict) and "event" in value:
            found.append(value)
    return found
