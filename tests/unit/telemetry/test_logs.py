"""Log lines: readable and JSON, bounded, and impossible to forge."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.telemetry import logs


class Reason(Enum):
    GONE = "gone"


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    """The program's configuration is global; the test runner's own comes back afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("nstance")
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def record(message: str, *args: object, **extras: object) -> logging.LogRecord:
    made = logging.getLogger("x").makeRecord(
        "nstance.server.state.shard", logging.INFO, "", 0, message, args, None, extra=extras
    )
    made.created = 1_763_195_400.1234
    return made


def failed(message: str) -> logging.LogRecord:
    try:
        raise ValueError(message)
    except ValueError:
        return logging.LogRecord("nstance.server", logging.ERROR, "", 0, "it failed", None, sys.exc_info())


READABLE = logs.ReadableFormatter()
JSON = logs.JsonFormatter("nstance-server")


def test_readable() -> None:
    line = READABLE.format(
        record("instance %s replaced", "a", reason=Reason.GONE, took=0.25, note="two words", empty="", n=3)
    )
    assert line == (
        "2025-11-15T08:30:00.123Z INFO    server.state.shard: instance a replaced"
        ' reason=gone took=0.25 note="two words" empty="" n=3'
    )


def test_json() -> None:
    line = JSON.format(
        record("instance replaced", reason=Reason.GONE, took=0.25, ok=True, none=None, level="mine", big=1 << 70)
    )
    assert json.loads(line) == {
        "time": "2025-11-15T08:30:00.123Z",
        "level": "info",  # an extra does not replace it
        "program": "nstance-server",
        "component": "server.state.shard",
        "message": "instance replaced",
        "reason": "gone",
        "took": 0.25,
        "ok": True,
        "none": None,
        "big": str(1 << 70),
    }


FORGERY = (
    "x\n2025-11-15T08:30:00.123Z INFO    server: all is well\r\x1b[2K\x1b]0;title\x07\u2028\u202e\x85\x9b\x7f\ud800"
)


@pytest.mark.parametrize("make", [lambda: record("%s", FORGERY), lambda: record("hello", name_of_group=FORGERY)])
def test_a_stranger_cannot_forge_lines_or_drive_the_terminal(make: object) -> None:
    assert callable(make)
    for formatter in (READABLE, JSON):
        line = formatter.format(make())
        assert line.isprintable()
        assert len(line.splitlines()) == 1
    assert FORGERY in json.loads(JSON.format(make())).values()


def test_a_value_cannot_pretend_to_be_another_field() -> None:
    """Quotes and backslashes in a value stay in the value."""
    assert READABLE.format(record("m", a='x" b="y')).endswith(r'a="x\" b=\"y"')
    assert READABLE.format(record("m", a="x\\", b="y z")).endswith(r'a="x\\" b="y z"')


def test_a_traceback_cannot_pretend_to_be_a_record() -> None:
    """An error's message may have lines; each one is marked."""
    lines = READABLE.format(failed(FORGERY)).split("\n")
    assert lines[0].endswith("ERROR   server: it failed")
    assert len(lines) > 3
    assert all(line.startswith("  | ") and line.isprintable() for line in lines[1:])
    assert "ValueError" in json.loads(JSON.format(failed("why")))["traceback"]


@pytest.mark.parametrize("letter", ["a", "é", "\n", '"', "\U0001f600", "\x00"])
def test_a_record_is_bounded(letter: str) -> None:
    """A gigabyte in a report does not become a gigabyte in the log."""
    huge = letter * 1_000_000
    for made in (
        record(huge),
        record("m", a=huge, b=huge),
        record("m", **{f"k{n}": huge for n in range(200)}),
        failed(huge),
    ):
        for formatter in (READABLE, JSON):
            line = formatter.format(made)
            assert len(line.encode()) <= logs.MAX_RECORD
            if formatter is JSON:
                assert json.loads(line)["message"]


def test_the_end_of_a_long_traceback_is_kept() -> None:
    lines = READABLE.format(failed("\n".join(f"line {n} " + "x" * 900 for n in range(200)))).split("\n")
    assert lines[1].startswith("  | …")
    assert lines[-1].startswith("  | line 199 ")


TEXTS = st.text(st.characters())


@given(TEXTS, st.dictionaries(st.sampled_from(["a", "b", "error"]), TEXTS | st.integers() | st.floats() | st.none()))
def test_any_text_is_one_line(message: str, extras: dict[str, object]) -> None:
    made = record("%s", message, **extras)
    assert len(READABLE.format(made).splitlines()) == 1
    line = JSON.format(made)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == message


def test_configure(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    for as_json in (True, False):  # the last call counts, and lines are not doubled
        logs.configure(json=as_json, debug=False, program="nstance-server")
    logging.getLogger("nstance.server").info("shown", extra={"n": 1})
    logging.getLogger("nstance.server").debug("hidden")
    logging.getLogger("hpack").info("header: authorization")
    logs.configure(json=False, debug=True, program="nstance-server")
    logging.getLogger("nstance.server").debug("details")
    logging.getLogger("hpack").debug("header: authorization")
    assert [line.partition(" ")[2] for line in stream.getvalue().splitlines()] == [
        "INFO    server: shown n=1",
        "DEBUG   server: details",
    ]


def test_the_agent_does_not_load_the_metrics_library() -> None:
    """Only memory on every VM would show it."""
    code = "import sys, nstance.telemetry.logs; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
