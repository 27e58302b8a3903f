"""What a person sees: one line for each thing that happens, with the time and with who says it in front."""

import os
import re
from typing import TextIO

from nstance.clock import Clock

WIDTH = 8  # of a name
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_COLOURS = ("\x1b[36m", "\x1b[35m", "\x1b[33m", "\x1b[34m")
_DATE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")  # the screen has a time of its own


class Screen:
    def __init__(self, out: TextIO, clock: Clock, *, timed: bool = True) -> None:
        """Colours only on a terminal, and not where NO_COLOR is set."""
        self._out = out
        self._clock = clock
        self._began = clock.monotonic()
        self._timed = timed
        self._coloured = out.isatty() and "NO_COLOR" not in os.environ
        self._names: dict[str, str] = {}

    def say(self, text: str = "") -> None:
        """In our own words."""
        self._write("dev", text, _BOLD)

    def quote(self, who: str, text: str) -> None:
        """A line of somebody's log."""
        self._write(who, _DATE.sub("", text), _DIM)

    def _write(self, who: str, text: str, style: str) -> None:
        time = f"{self._clock.monotonic() - self._began:7.2f}s " if self._timed else ""
        name = self._paint(f"{who:<{WIDTH}} |", self._colour(who))
        for line in text.split("\n"):
            self._out.write(f"{time}{name} {self._paint(line, style)}".rstrip() + "\n")
        self._out.flush()

    def _colour(self, who: str) -> str:
        if who == "dev":
            return _BOLD
        return self._names.setdefault(who, _COLOURS[len(self._names) % len(_COLOURS)])

    def _paint(self, text: str, style: str) -> str:
        return f"{style}{text}{_PLAIN}" if self._coloured and text else text
