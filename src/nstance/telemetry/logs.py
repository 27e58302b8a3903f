"""Log formatting: readable lines or JSON. One record is one line, and content cannot forge a line.

The convention everywhere in Nstance:

    log = logging.getLogger(__name__)
    log.info("instance replaced", extra={"instance": id, "reason": reason.code})

The message is constant; everything that varies is in `extra`. A name in `extra` must not be one of logging's own (`name`,
`msg`, `args`, `module`, `process`, …: it raises). Secrets are never logged: callers leave them out, nothing is filtered
here. Names, errors and reports come from outside, so control characters are escaped and a record has at most 16 KiB.
Other libraries log warnings only, also with `debug`, because some of them print headers and bodies.
"""

import json as jsonlib
import logging
import math
import re
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum

from nstance.telemetry import trace_ids

MAX_RECORD = 16 * 1024  # bytes, the newline not counted
_MAX_VALUE = 4096  # characters of one extra
_MAX_LINE = 1024  # of a traceback
_MAX_LINES = 60
_CUT = "…[cut]"

# Characters that could end a line, hide text or control a terminal: C0, DEL, C1, line separators, marks that reverse the
# text direction, and surrogates, which cannot be encoded.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_OWN_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def configure(*, json: bool, debug: bool, program: str, fields: Mapping[str, str] | None = None) -> None:
    """Log to standard error. The last call counts. `fields` are in every record of the JSON format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(program, fields or {}) if json else ReadableFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("nstance").setLevel(logging.DEBUG if debug else logging.INFO)
    if json:  # a program that ends by a bug must not print a traceback of many lines
        sys.excepthook = lambda kind, error, trace: root.critical("unexpected error", exc_info=(kind, error, trace))


def is_json() -> bool:
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


class ReadableFormatter(logging.Formatter):
    """`2026-11-15T08:30:00.123Z INFO  server.shard: instance replaced instance=knc-01… reason=gone`"""

    def format(self, record: logging.LogRecord) -> str:
        extras = "".join(f" {key}={_readable(value)}" for key, value in _extras(record).items())
        message = _escape(_start(record.getMessage()))
        line = f"{_time(record)} {record.levelname:<7} {_component(record)}: {message}{extras}"
        trace = _trace(record)
        if not trace:
            return _fit(line, MAX_RECORD)
        # The prefix keeps a line of an error message from looking like a record.
        marked = "\n".join(f"  | {each}" for each in trace)
        return _fit(line, MAX_RECORD // 2) + "\n" + _fit_end(marked, MAX_RECORD // 2 - 1)


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, program, component, message, traceback if there is one, and the extras. In the
    work for a trace, every record has its ID."""

    def __init__(self, program: str, fields: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._program = program
        self._fields = fields or {}

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "program": self._program,
            "component": _component(record),
            "message": _start(record.getMessage()),
        }
        trace = _trace(record)
        if trace:
            fields["traceback"] = "\n".join(trace)
        for key, value in _extras(record).items():
            fields.setdefault(key, _plain(value))
        for key, text in self._fields.items():
            fields.setdefault(key, text)
        if trace_id := trace_ids.current.get():
            fields.setdefault("trace_id", trace_id)
        line = _json(fields)
        # Escapes may add any amount, so values are shortened until the line fits and stays valid JSON.
        share = MAX_RECORD
        while len(line.encode()) > MAX_RECORD:
            share //= 2
            fields = {key[:100]: _shorter(value, share) for key, value in list(fields.items())[:20]} | {"cut": True}
            line = _json(fields)
        return line


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _component(record: logging.LogRecord) -> str:
    return record.name.removeprefix("nstance.")


def _extras(record: logging.LogRecord) -> Mapping[str, object]:
    return {key: value for key, value in record.__dict__.items() if key not in _OWN_ATTRIBUTES}


def _trace(record: logging.LogRecord) -> list[str]:
    """The last lines of a traceback, escaped: the error is at its end."""
    text = ""
    if record.exc_info and record.exc_info[1] is not None:
        text = "".join(traceback.format_exception(record.exc_info[1]))
    elif record.stack_info:
        text = record.stack_info
    lines = text.rstrip("\n").split("\n") if text else []
    return [_escape(line[:_MAX_LINE]) for line in lines[-_MAX_LINES:]]


def _plain(value: object) -> object:
    """A value that JSON can represent."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value.bit_length() < 64:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    return _start(str(value), _MAX_VALUE)


def _readable(value: object) -> str:
    plain = _plain(value)
    if isinstance(plain, float):
        return repr(round(plain, 6))
    text = _escape(str(plain).replace("\\", "\\\\"))
    if text and not any(letter in text for letter in ' "=\\'):
        return text
    return '"' + text.replace('"', '\\"') + '"'


def _start(text: str, length: int = MAX_RECORD) -> str:
    """At most `length` characters, so that huge texts are not escaped."""
    return text if len(text) <= length else text[:length] + _CUT


def _escape(text: str) -> str:
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escape_character, text)


def _escape_character(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _ESCAPES.get(found[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def _json(fields: Mapping[str, object]) -> str:
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", jsonlib.dumps(fields, ensure_ascii=False))


def _shorter(value: object, length: int) -> object:
    return _start(value, length) if isinstance(value, str) else value


def _fit(text: str, size: int) -> str:
    """The beginning that fits."""
    data = text.encode(errors="backslashreplace")
    if len(data) <= size:
        return text
    return data[: size - len(_CUT.encode())].decode(errors="ignore") + _CUT


def _fit_end(text: str, size: int) -> str:
    """The last lines that fit."""
    data = text.encode()
    if len(data) <= size:
        return text
    return "  | …" + data[len(data) - size + 16 :].decode(errors="ignore").partition("\n")[2].removeprefix("  | ")
