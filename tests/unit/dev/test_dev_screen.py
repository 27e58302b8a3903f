import io

import pytest

from nstance.clock import SystemClock
from nstance.dev.screen import Screen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_each_line_has_the_name_of_its_process() -> None:
    out = io.StringIO()
    screen = Screen(out, SystemClock(), timed=False)
    screen.say("first\nsecond")
    screen.quote("server-1", "2026-11-15T08:30:00.123Z INFO    server.shard: hello")
    assert out.getvalue() == "dev      | first\ndev      | second\nserver-1 | INFO    server.shard: hello\n"


def test_colors_only_on_a_terminal_that_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    Screen(out, SystemClock()).say("x")
    assert "\x1b[" in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    Screen(plain, SystemClock()).say("x")
    assert "\x1b[" not in plain.getvalue()
