"""QMP: QEMU's control socket, one short conversation at a time.

The trap: a socket serves one client, and a second one waits. So every conversation is short, has a deadline, and ends by
closing the socket. Events are not read here: QEMU writes them to a file (see `events`), which also has those of the time
when no server ran.
"""

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SOCKET = "qmp.sock"
TIMEOUT_SECONDS = 5.0
_MAX_LINE_BYTES = 1024 * 1024


class QmpError(Exception):
    """QEMU does not answer, or refuses the command."""


class Monitor:
    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rwb")

    def execute(self, command: str, **arguments: object) -> Any:
        request: dict[str, object] = {"execute": command}
        if arguments:
            request["arguments"] = arguments
        self._stream.write(json.dumps(request).encode() + b"\n")
        self._stream.flush()
        while True:
            answer = self._read()
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise QmpError(f"QEMU refused {command}: {answer['error'].get('desc', answer['error'])}")

    def greet(self) -> None:
        self._read()
        self.execute("qmp_capabilities")

    def _read(self) -> Mapping[str, Any]:
        line = self._stream.readline(_MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise QmpError("QEMU closed its control socket")
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise QmpError(f"expected an object from QEMU, found {type(answer).__name__}")
        return answer


@contextlib.contextmanager
def monitor(directory: Path, *, timeout: float = TIMEOUT_SECONDS) -> Iterator[Monitor]:
    """A conversation with the VM of this directory. Raises QmpError."""
    # The path of a socket is short. So it is reached through the directory's descriptor, however deep that is.
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(f"/proc/self/fd/{folder}/{SOCKET}")
            opened = Monitor(connection)
            opened.greet()
            yield opened
    except (OSError, ValueError) as problem:
        raise QmpError(f"QEMU does not answer: {problem}") from problem
    finally:
        os.close(folder)
