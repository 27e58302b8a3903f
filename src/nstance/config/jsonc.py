"""JSON with comments and trailing commas, and the exact place of every value.

Comments and trailing commas are replaced by spaces, which keeps offsets, and the standard library parses the rest. Places
are looked up only for problems. The trap is input that makes a regular expression slow: every pattern here matches
whatever follows its first character, so no text is scanned twice.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from math import isinf, isnan

from nstance.config.errors import MAX_PROBLEMS, ConfigError, Problem, quoted

MAX_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64
_MAX_DIGITS = 18  # that every JSON parser represents exactly

Path = tuple[str | int, ...]
Fault = tuple[Path, int, str]  # valid JSON that is not accepted: path, offset, message

# The atomic group discards the backtracking of 200 escapes: without it a string of escapes takes 60 times its size in
# memory. Possessive quantifiers are not used because Python before 3.11.5 matches them wrongly.
_STRING = r'"[^"\\\n]*(?>(?:\\.[^"\\\n]*){1,200})*"?'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*[\s\S]*?(?:\*/|\Z)")
_COMMA = re.compile(rf"{_STRING}|,(?=[ \t\r\n]*[}}\]])")
_NESTING = re.compile(rf"{_STRING}|[\[\]{{}}]")
_TOKEN = re.compile(rf'{_STRING}|[{{}}\[\]:,]|[^ \t\r\n{{}}\[\]:,"]+')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NOT_NEWLINE = re.compile(r"[^\n]")
_MESSAGES = (
    ("Expecting property name", "expected a key in double quotes or the end of the object"),
    ("Illegal trailing comma", "expected a value after the comma"),
    ("Expecting ':'", "expected a colon after the key"),
    ("Expecting ','", "expected a comma or the end of the object or list"),
    ("Expecting value", "expected a value"),
    ("Extra data", "expected nothing after the document's end"),
    ("Invalid control", "expected no control character in a string; write \\n or \\t for a line break or tab"),
    ("Invalid \\escape", 'expected one of the escapes \\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX'),
    ("Invalid \\uXXXX", "expected four hexadecimal digits after \\u"),
    ("Unterminated string", "expected the closing quote of this string on the same line"),
)
_NOT_UNICODE = "expected text that is valid Unicode, found half of a surrogate pair"


@dataclass(frozen=True, slots=True)
class Place:
    """The offsets of a value and of its key, if it has one."""

    key: int | None
    value: int


class Document:
    """A parsed text. `value` is plain JSON data."""

    __slots__ = ("_lines", "text", "value")

    def __init__(self, text: str) -> None:
        self.text = text  # with its comments blanked
        self._lines: list[int] | None = None
        self.value: object = None

    def locate(self, wanted: Collection[Path]) -> dict[Path, Place]:
        """The places of those paths that exist."""
        return {path: place for path, place, _ in self._walk() if path in wanted}

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both from 1."""
        if self._lines is None:
            self._lines = [0, *(found.end() for found in re.finditer("\n", self.text))]
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1

    def position_of(self, path: Path) -> tuple[int, int]:
        return self.position(self.locate({path})[path].value)

    def offset_in_string(self, start: int, index: int) -> int:
        """The offset of a character of the string at `start`: escapes make the text longer than the string."""
        offset = start + 1
        for _ in range(index):
            if self.text[offset] != "\\":
                offset += 1
            elif self.text[offset + 1] != "u":
                offset += 2
            else:
                offset += 12 if _SURROGATE.match(self.text, offset) else 6
        return offset

    def faults(self) -> Iterator[Fault]:
        seen: set[Path] = set()
        repeated: set[Path] = set()
        for path, place, token in self._walk():
            if path[:-1] in repeated and path:
                repeated.add(path)  # everything below a repeated key is repeated; report it once
            elif path in seen and place.key is not None:
                repeated.add(path)
                yield path, place.key, "expected each key once, found this one twice in its object"
            seen.add(path)
            if place.key is not None and not _is_encodable(str(path[-1])):
                yield path, place.key, _NOT_UNICODE
            if token[0] == '"':
                if not _is_encodable(json.loads(token)):
                    yield path, place.value, _NOT_UNICODE
            elif token[0] not in "{[tfn" and not _is_accepted_number(token):
                message = f"expected a finite number of at most {_MAX_DIGITS} digits, found {quoted(token)}"
                yield path, place.value, message

    def _walk(self) -> Iterator[tuple[Path, Place, str]]:
        """Every value of a valid text, parents before children."""
        path: list[str | int] = []  # of the next value
        keys: list[int | None] = [None]  # the offset of its key, per level
        inside_object: list[bool] = []
        expects_key = False
        for found in _TOKEN.finditer(self.text):
            token, offset = found[0], found.start()
            if expects_key and token[0] == '"':
                path[-1], keys[-1], expects_key = json.loads(token), offset, False
            elif token in "}]":
                path.pop(), keys.pop(), inside_object.pop()
                expects_key = False
            elif token == ",":
                expects_key = inside_object[-1]
                if not expects_key:
                    path[-1] = int(path[-1]) + 1
            elif token != ":":
                yield tuple(path), Place(keys[-1], offset), token
                if token in "{[":
                    expects_key = token == "{"
                    path.append("" if expects_key else 0)
                    keys.append(None)
                    inside_object.append(expects_key)


def read(body: str | bytes, *, source: str, limit: int = MAX_BYTES) -> Document:
    """Raises ConfigError: one problem for invalid JSON, all problems for contents that are not accepted."""
    document, faults = examine(body, source=source, limit=limit)
    if faults:
        raise ConfigError(
            tuple(
                Problem(show(path) or source, *document.position(offset), message) for path, offset, message in faults
            )
        )
    return document


def examine(body: str | bytes, *, source: str, limit: int = MAX_BYTES) -> tuple[Document, list[Fault]]:
    """A document and the faults in it, for callers that add problems of their own. The last of repeated keys counts, and
    a number that is not accepted is read as 0. Raises ConfigError for invalid JSON."""
    text = _decode(body, source, limit).removeprefix("\ufeff")
    blanked, unclosed = _without_comments(text)
    document = Document(_without_commas(blanked))
    if unclosed is not None:
        raise _config_error(source, "expected this comment to be closed by */", document.position(unclosed))
    _check_depth(document, source)
    try:
        document.value, suspicious = _parse(document.text)
    except json.JSONDecodeError as error:
        message = next((ours for theirs, ours in _MESSAGES if error.msg.startswith(theirs)), "expected JSON")
        raise _config_error(source, message + _found(document.text, error.pos), document.position(error.pos)) from None
    suspicious = suspicious or _SURROGATE.search(document.text) is not None
    return document, list(islice(document.faults(), MAX_PROBLEMS)) if suspicious else []


def _config_error(source: str, message: str, position: tuple[int, int] = (1, 1)) -> ConfigError:
    return ConfigError((Problem(source, *position, message),))


def _decode(body: str | bytes, source: str, limit: int) -> str:
    try:
        data = body.encode() if isinstance(body, str) and len(body) <= limit else body
        if len(data) > limit:
            raise _config_error(source, f"expected at most {limit:,} bytes, found more")
        return data.decode() if isinstance(data, bytes) else data
    except UnicodeError:
        raise _config_error(source, "expected UTF-8 text, found other bytes") from None


def _without_comments(text: str) -> tuple[str, int | None]:
    """The text with spaces for comments, and the offset of an unclosed comment."""
    unclosed: list[int] = []

    def blank(found: re.Match[str]) -> str:
        comment = found[0]
        if comment[0] == '"':
            return comment
        if comment[1] == "*" and not (len(comment) >= 4 and comment.endswith("*/")):
            unclosed.append(found.start())
        return _NOT_NEWLINE.sub(" ", comment)

    return _COMMENT.sub(blank, text), next(iter(unclosed), None)


def _without_commas(text: str) -> str:
    def blank(found: re.Match[str]) -> str:
        if found[0] != ",":
            return found[0]
        before = found.start() - 1
        while before >= 0 and text[before] in " \t\r\n":
            before -= 1
        # A comma that follows no value is a mistake, not a trailing comma.
        return "," if before < 0 or text[before] in "[{,:" else " "

    return _COMMA.sub(blank, text)


def _check_depth(document: Document, source: str) -> None:
    depth = 0
    for found in _NESTING.finditer(document.text):
        depth += 1 if found[0] in "{[" else -1 if found[0] in "}]" else 0
        if depth > MAX_DEPTH:
            raise _config_error(
                source, f"expected at most {MAX_DEPTH} levels of nesting", document.position(found.start())
            )


def _parse(text: str) -> tuple[object, bool]:
    """The value, and whether it may hold faults: finding them takes a second pass over the text."""
    suspects: list[str] = []

    def pairs(members: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(members)
        if len(made) != len(members):
            suspects.append("duplicate key")
        return made

    def number(token: str) -> int | float:
        if not _is_accepted_number(token):
            suspects.append(token)
            return 0
        return int(token) if token.lstrip("-").isdigit() else float(token)

    value = json.loads(text, object_pairs_hook=pairs, parse_int=number, parse_float=number, parse_constant=number)
    return value, bool(suspects)


def _is_accepted_number(token: str) -> bool:
    digits = token.lstrip("-")
    if digits.isdigit():
        return len(digits) <= _MAX_DIGITS
    return not (isinf(value := float(token)) or isnan(value))


def _found(text: str, offset: int) -> str:
    if offset >= len(text):
        return ", found the end of the text"
    found = _TOKEN.match(text, offset)
    return f", found {quoted(found[0])}" if found else ""


def _is_encodable(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def show(path: Path) -> str:
    """A path for messages: `groups.default.web.vars["odd key"]`, `advertise[0]`."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        elif re.fullmatch(r"[\w-]{1,64}", part, re.ASCII):
            shown += f".{part}" if shown else part
        else:
            shown += f"[{quoted(part)}]"
    return shown
