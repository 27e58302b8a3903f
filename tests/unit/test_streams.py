"""Programs whose standard streams were closed by their parent process."""

import importlib
import subprocess
import sys

import pytest

from nstance import streams

_PROGRAM = (
    "from nstance import streams; streams.reopen(); import os, socket, sys; "
    "print('words', flush=True); print('words', file=sys.stderr); sys.stdin.read(); os._exit(socket.socket().fileno())"
)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ""])
def test_no_socket_takes_the_place_of_a_closed_stream(closed: str) -> None:
    shell = ["/bin/sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, _PROGRAM]
    done = subprocess.run(shell, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode > 2
    if not closed:
        assert (done.stdout, done.stderr) == ("words\n", "words\n")


@pytest.mark.parametrize("program", ["admin", "agent", "operator", "server"])
def test_every_program_sees_to_it_first(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Called(Exception):
        pass

    def call() -> None:
        raise Called

    monkeypatch.setattr(streams, "reopen", call)
    with pytest.raises(Called):
        importlib.import_module(f"nstance.{program}.main").main()
