"""The output of the development programs: lines with the time and the name of the process."""

import os
import re
from typing import TextIO

from nstance.clock import Clock

NAME_WIDTH = 8
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_COLORS = ("\x1b[36m", "\x1b[35m", "\x1b[33m", "\x1b[34m")
_DATE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")  # the screen adds its own time


class Screen:
    def __init__(self, out: TextIO, clock: Clock, *, timed: bool = True) -> None:
        """Colors only on a terminal, and not if NO_COLOR is set."""
        self._out = out
        self._clock = clock
        self._started = clock.monotonic()
        self._timed = timed
        self._has_colors = out.isatty() and "NO_COLOR" not in os.environ
        self._color_by_name: dict[str, str] = {}

    def say(self, text: str = "") -> None:
        """Prints a message of ours."""
        self._write("dev", text, _BOLD)

    def quote(self, name: str, text: str) -> None:
        """Prints a line of a process's log."""
        self._write(name, _DATE.sub("", text), _DIM)

    def _write(self, name: str, text: str, style: str) -> None:
        time = f"{self._clock.monotonic() - self._started:7.2f}s " if self._timed else ""
        label = self._paint(f"{name:<{NAME_WIDTH}} |", self._color(name))
        for line in text.split("\n"):
            self._out.write(f"{time}{label} {self._paint(line, style)}".rstrip() + "\n")
        self._out.flush()

    def _color(self, name: str) -> str:
        if name == "dev":
            return _BOLD
        return self._color_by_name.setdefault(name, _COLORS[len(self._color_by_name) % len(_COLORS)])

    def _paint(self, text: str, style: str) -> str:
        return f"{style}{text}{_PLAIN}" if self._has_colors and text else text
