"""The terminal of `top`: curses, because it knows every terminal, sends only what changed, and is a part of Python."""

import contextlib
import curses
import locale
import os
import sys
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from nstance.admin import errors
from nstance.admin.top.lines import Line

ESCAPE_DELAY_MS = 25  # between Esc by itself and a key that begins with it
COLORS = {"good": curses.COLOR_GREEN, "warn": curses.COLOR_YELLOW, "bad": curses.COLOR_RED}
COLORS |= {"warning": curses.COLOR_YELLOW, "info": curses.COLOR_CYAN, "leave": curses.COLOR_MAGENTA}
ATTRIBUTES = {"bold": curses.A_BOLD, "dim": curses.A_DIM, "reverse": curses.A_REVERSE}
WITHOUT_COLOR = {"bad": curses.A_BOLD, "warn": curses.A_BOLD, "warning": curses.A_BOLD}
KEYS = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_LEFT: "left",
    curses.KEY_RIGHT: "right",
    curses.KEY_PPAGE: "pageup",
    curses.KEY_NPAGE: "pagedown",
    curses.KEY_HOME: "home",
    curses.KEY_END: "end",
    curses.KEY_ENTER: "enter",
    curses.KEY_BACKSPACE: "backspace",
}
CHARACTERS = {"\n": "enter", "\r": "enter", "\x1b": "esc", "\x7f": "backspace", "\b": "backspace", "\t": "tab"}
CHARACTERS |= {"\x15": "clear"}  # Ctrl-U


class Screen:
    def __init__(self, window: "curses.window", *, is_unicode: bool, has_color: bool) -> None:
        self._window = window
        self.is_unicode = is_unicode
        self._styles = dict(ATTRIBUTES)
        for number, (style, color) in enumerate(COLORS.items(), start=1):
            if has_color:
                curses.init_pair(number, color, -1)
                self._styles[style] = curses.color_pair(number)
            else:
                self._styles[style] = WITHOUT_COLOR.get(style, 0)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        height, width = self._window.getmaxyx()
        return width, height

    def resize(self) -> None:
        """To what the terminal has now."""
        width, height = os.get_terminal_size(sys.stdout.fileno())
        curses.resizeterm(max(1, height), max(1, width))
        self._window.clear()

    def show(self, lines: Sequence[Line]) -> None:
        width, height = self.size
        self._window.erase()
        for y, parts in enumerate(lines[:height]):
            x = 0
            for original, style in parts:
                text = original if self.is_unicode else original.replace("…", "~").encode("ascii", "replace").decode()
                # The lower right cell cannot be written without an error: the cursor has no place after it.
                with contextlib.suppress(curses.error):
                    self._window.addstr(y, x, text, self._styles.get(style, 0))
                x += cell_len(text)
                if x >= width:
                    break
        self._window.refresh()

    def pressed(self) -> Iterator[str]:
        """Those that were pressed; it does not wait."""
        while True:
            try:
                key = self._window.get_wch()
            except curses.error:
                return
            found = KEYS.get(key) if isinstance(key, int) else CHARACTERS.get(key, key)
            if found:
                yield found


@contextlib.contextmanager
def opened() -> Iterator[Screen]:
    """Raises CommandError without a terminal that can be drawn on. The terminal is restored whatever happens."""
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise errors.CommandError("top needs a terminal; for a pipe use `nstance-admin status -o json`")
    locale.setlocale(locale.LC_ALL, "")
    try:
        curses.setupterm(fd=sys.stdout.fileno())
    except curses.error as problem:
        raise errors.CommandError(f"failed to find out how to draw on this terminal: {problem}; set TERM") from problem
    if not curses.tigetstr("cup"):
        raise errors.CommandError(
            "this terminal cannot move its cursor; use `nstance-admin status --watch`, or set TERM"
        )
    curses.set_escdelay(ESCAPE_DELAY_MS)
    window = curses.initscr()
    try:
        curses.noecho()
        curses.cbreak()
        window.keypad(True)
        window.nodelay(True)
        with contextlib.suppress(curses.error):
            curses.curs_set(0)
        has_color = curses.has_colors() and not os.environ.get("NO_COLOR")
        if has_color:
            curses.start_color()
            curses.use_default_colors()
        is_unicode = locale.nl_langinfo(locale.CODESET).upper().replace("-", "") == "UTF8"
        yield Screen(window, is_unicode=is_unicode, has_color=has_color)
    finally:
        window.keypad(False)
        curses.nocbreak()
        curses.echo()
        curses.endwin()
