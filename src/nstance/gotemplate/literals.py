"""Go literals: numbers with underscores and base prefixes, strings and characters with escapes."""

import math
import re

from nstance.gotemplate.errors import UnlocatedError
from nstance.gotemplate.values import decode, encode

_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\'\"])|([0-7]{3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.|\Z))", re.DOTALL
)
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}
# Underscores only between digits, or between a base prefix and a digit.
_UNDERSCORES = re.compile(
    r"[+-]?(?:0[xXoObB])?_?[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*(?:[.pPeE+-]+(?:[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*)?)*"
)


def parse_number(text: str) -> int | float:
    if "_" in text and (not _UNDERSCORES.fullmatch(text) or re.match(r"[+-]?_", text)):
        raise UnlocatedError(f"illegal number syntax: '{text}'; expected underscores between digits only")
    plain = text.replace("_", "")
    try:
        value = _integer(plain)
    except ValueError:
        return _float(plain)
    if not -(1 << 63) <= value < 1 << 63:
        raise UnlocatedError(f"integer overflow: '{text}'; expected at most 64 bits")
    return value


def _integer(text: str) -> int:
    if len(text) > 100:
        raise ValueError  # no 64-bit number is that long, and Python's int() is slow for long ones
    return int(text, 8 if re.fullmatch(r"[+-]?0[0-7]+", text) else 0)


def _float(text: str) -> float:
    try:
        if not re.search(r"[.eEpP]", text):
            raise ValueError
        if re.match(r"[+-]?0[xX]", text):
            if not re.search("[pP]", text):
                raise ValueError
            value = float.fromhex(text)
        else:
            value = float(text)
    except (ValueError, OverflowError):
        raise UnlocatedError(f"illegal number syntax: '{text[:40]}'") from None
    if math.isinf(value):
        raise UnlocatedError(f"number out of range: '{text[:40]}'")
    return value


def parse_string(text: str) -> str:
    """The value of a quoted or raw string, quotes included in `text`."""
    if text[0] == "`":
        return text[1:-1].replace("\r", "")
    return _unescape(text[1:-1], quote='"')


def parse_character(text: str) -> int:
    """The code of a character constant such as 'a'."""
    value = _unescape(text[1:-1], quote="'")
    if len(value) != 1:
        raise UnlocatedError(f"malformed character constant {text[:20]}; expected one character")
    code = ord(value)
    return code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code  # an escaped byte


def _unescape(text: str, *, quote: str) -> str:
    if "\\" not in text:
        return text

    def value(found: re.Match[str]) -> bytes:
        simple, octal, byte, short, long, wrong = found.groups()
        if simple in ("'", '"'):
            if simple != quote:
                raise UnlocatedError(f"unknown escape \\{simple}")
            return quote.encode()
        if simple:
            return _SIMPLE[simple].encode()
        if wrong is not None:
            raise UnlocatedError(f"unknown or unfinished escape \\{wrong}")
        if octal or byte:
            code = int(octal, 8) if octal else int(byte, 16)
            if code > 255:
                raise UnlocatedError(f"octal escape \\{octal} is beyond a byte")
            return bytes((code,))
        code = int(short or long, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise UnlocatedError(f"\\u escape of U+{code:04X}; expected a valid character")
        return chr(code).encode()

    pieces, position = [], 0
    for found in _ESCAPE.finditer(text):
        pieces += [encode(text[position : found.start()]), value(found)]
        position = found.end()
    pieces.append(encode(text[position:]))
    return decode(b"".join(pieces))
