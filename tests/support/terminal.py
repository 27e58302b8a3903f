"""A terminal that a test looks at and types into: one window of a tmux of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from support.eventually import wait_for

NEEDS_TMUX = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs the program tmux")


@dataclass(frozen=True)
class Terminal:
    environment: Mapping[str, str]

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-f", os.devnull, *words], env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *words: str, size: tuple[int, int], **environment: str) -> None:
        """`nstance-admin` in the window; its exit code is shown when it ends."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        command = ["env", *variables, sys.executable, "-m", "nstance.admin", *words]
        width, height = map(str, size)
        script = 'trap : INT; "$@"; echo "ended with $?"; exec sleep 100000'
        self._tmux("new-session", "-d", "-x", width, "-y", height, "sh", "-c", script, "sh", *command)

    def press(self, *keys: str) -> None:
        """Each a character, or a name of tmux such as Enter or Escape."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def lines(self) -> list[str]:
        return self._tmux("capture-pane", "-p").splitlines()

    def colors(self) -> str:
        """The screen with its control sequences."""
        return self._tmux("capture-pane", "-p", "-e")

    def until(self, *texts: str) -> list[str]:
        """The screen as soon as it has all of the texts."""
        seen: list[str] = []

        def look() -> list[str] | None:
            seen[:] = self.lines()
            screen = "\n".join(seen)
            return list(seen) if all(text in screen for text in texts) else None

        try:
            return wait_for(f"the screen shows {texts}", look)
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + "\n".join(seen)) from None

    def until_gone(self, text: str) -> list[str]:
        return wait_for(f"the screen shows no {text}", lambda: text not in "\n".join(found := self.lines()) and found)


@contextmanager
def terminal(environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Not in the test's own folder: the name of a socket must be short."""
    with tempfile.TemporaryDirectory(prefix="nst-", ignore_cleanup_errors=True) as folder:
        inherited = {name: value for name, value in os.environ.items() if name not in ("TMUX", "NO_COLOR")}
        own = {"TMUX_TMPDIR": folder, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        made = Terminal({**inherited, **own, **environment})
        try:
            yield made
        finally:
            subprocess.run(["tmux", "kill-server"], env=dict(made.environment), capture_output=True, timeout=60)
