"""Formats numbers and strings as Go's `fmt` does for a directive such as `%-8.3f`.

The trap is in the details: a float prints with the fewest digits that parse to the same value, and with an exponent from a
million on; zeros pad strings too; a width counts characters, a length counts bytes.
"""

import math
from dataclasses import dataclass

from nstance.gotemplate.errors import UnlocatedError
from nstance.gotemplate.limits import Budget
from nstance.gotemplate.values import encode


@dataclass(slots=True)
class Directive:
    """The flags, width and precision between `%` and the verb."""

    sharp: bool = False
    zero: bool = False
    plus: bool = False
    minus: bool = False
    space: bool = False
    go_syntax: bool = False  # %#v
    width: int | None = None
    precision: int | None = None

    def reserve(self, budget: Budget) -> None:
        budget.reserve_characters((self.width or 0) + (self.precision or 0))

    def pad(self, text: str, *, zeros: bool | None = None) -> str:
        if self.width is None or len(text) >= self.width:
            return text
        if self.minus:
            return text.ljust(self.width)
        return text.rjust(self.width, "0" if (self.zero if zeros is None else zeros) else " ")


_BASES = {"v": "d", "d": "d", "b": "b", "o": "o", "O": "o", "x": "x", "X": "X"}
_PREFIXES = {"b": "0b", "x": "0x", "X": "0X"}


def format_int(value: int, verb: str, directive: Directive) -> str | None:
    """None if the verb does not apply to integers."""
    if not -(1 << 63) <= value < 1 << 64:
        raise UnlocatedError("data holds an integer of more than 64 bits; expected less")
    if verb in ("c", "q"):
        letter = chr(value) if 0 <= value <= 0x10FFFF and not 0xD800 <= value <= 0xDFFF else "\ufffd"
        return directive.pad(letter if verb == "c" else quote(letter, "'", ascii_only=directive.plus))
    if verb == "U":
        code = value % (1 << 64)
        text = f"U+{code:0{max(4, directive.precision or 0)}X}"
        if directive.sharp and code <= 0x10FFFF and chr(code).isprintable():
            text += f" '{chr(code)}'"
        return directive.pad(text, zeros=False)
    base = _BASES.get(verb)
    if base is None:
        return None
    sign = "-" if value < 0 else "+" if directive.plus else " " if directive.space else ""
    digits = format(abs(value), base)
    if directive.precision is not None:
        if directive.precision == 0 and value == 0:
            return " " * (directive.width or 0)
        digits = digits.rjust(directive.precision, "0")
    elif directive.zero and not directive.minus and directive.width is not None:
        digits = digits.rjust(directive.width - len(sign), "0")
    if directive.sharp:
        if base == "o" and not digits.startswith("0"):
            digits = "0" + digits
        digits = _PREFIXES.get(base, "") + digits
    if verb == "O":
        digits = "0o" + digits
    return directive.pad(sign + digits, zeros=False)


def format_float(value: float, verb: str, directive: Directive) -> str | None:
    if verb not in ("v", "g", "G", "e", "E", "f", "F"):
        if verb in ("b", "x", "X"):
            raise UnlocatedError(f"%{verb} of a float is not supported; expected %f, %e, %g or %v")
        return None
    sign = "-" if math.copysign(1, value) < 0 else "+" if directive.plus else " " if directive.space else ""
    if math.isnan(value) or math.isinf(value):
        if math.isinf(value):
            return directive.pad(f"{sign or '+'}Inf", zeros=False)
        return directive.pad(f"{sign if sign != '-' else ''}NaN", zeros=False)
    text = _magnitude(abs(value), "g" if verb == "v" else verb, directive)
    if directive.zero and not directive.minus and directive.width is not None:
        text = text.rjust(directive.width - len(sign), "0")
    return directive.pad(sign + text, zeros=False)


def _magnitude(value: float, verb: str, directive: Directive) -> str:
    sharp = "#" if directive.sharp else ""
    if verb in ("e", "E", "f", "F"):
        return f"%{sharp}.{6 if directive.precision is None else directive.precision}{verb}" % value
    if directive.precision is not None:
        return f"%{sharp}.{directive.precision}{verb}" % value
    digits, _ = digits_of(value)
    text = f"%#.6{verb}" % value if sharp and len(digits) < 6 else shortest(value)
    if sharp and "." not in text:
        mantissa, e, exponent = text.partition("e")
        text = f"{mantissa}.{e}{exponent}"
    return text.upper() if verb == "G" else text


def digits_of(value: float) -> tuple[str, int]:
    """The fewest decimal digits that parse to this number, and the exponent of the first one."""
    mantissa, _, exponent = f"{value!r}e".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    stripped = digits.lstrip("0")
    if not stripped:
        return "0", 0
    first = len(whole) - 1 - (len(digits) - len(stripped)) + int(exponent.rstrip("e") or 0)
    return stripped.rstrip("0"), first


MAX_POSITIONAL_DIGITS = 6  # before the point, until `%v` writes an exponent


def shortest(value: float) -> str:
    """A non-negative number as `%v` writes it."""
    digits, exponent = digits_of(value)
    if exponent < -4 or exponent >= MAX_POSITIONAL_DIGITS:
        return scientific(digits, exponent)
    return positional(digits, exponent)


def positional(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    fraction = digits[exponent + 1 :]
    return f"{whole}.{fraction}" if fraction else whole


def scientific(digits: str, exponent: int) -> str:
    point = "." if len(digits) > 1 else ""
    return f"{digits[0]}{point}{digits[1:]}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def format_text(value: str, verb: str, directive: Directive) -> str | None:
    if verb in ("x", "X"):
        return _hexadecimal(value, verb, directive)
    if verb not in ("v", "s", "q"):
        return None
    if directive.precision is not None:
        value = value[: directive.precision]
    if verb == "q" or (verb == "v" and directive.go_syntax):
        if directive.sharp and _fits_backquotes(value):
            return directive.pad(f"`{value}`")
        value = quote(value, '"', ascii_only=directive.plus)
    return directive.pad(value)


def _hexadecimal(value: str, verb: str, directive: Directive) -> str:
    data = encode(value)[: directive.precision]
    prefix = f"0{verb}" if directive.sharp and data else ""
    text = prefix + data.hex(" ").replace(" ", " " + prefix) if directive.space else prefix + data.hex()
    if verb == "X":
        text = text.upper()
    return directive.pad(text)


def _fits_backquotes(value: str) -> bool:
    return all(
        letter == "\t" or (letter >= " " and letter not in "`\x7f\ufeff" and not _is_byte(letter)) for letter in value
    )


_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\"}


def quote(value: str, quote: str = '"', *, ascii_only: bool = False) -> str:
    """A Go literal of this string."""
    if value.isascii() and value.isprintable() and "\\" not in value and quote not in value:
        return f"{quote}{value}{quote}"
    return quote + "".join(_escaped(letter, quote, ascii_only) for letter in value) + quote


def _escaped(letter: str, quote: str, ascii_only: bool) -> str:
    if letter == quote:
        return "\\" + quote
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    code = ord(letter)
    if letter.isprintable() and (code < 0x80 or not ascii_only):
        return letter
    if code < 0x80:
        return f"\\x{code:02x}"
    if _is_byte(letter):
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _is_byte(letter: str) -> bool:
    """Whether it represents a byte that is not UTF-8."""
    return "\udc80" <= letter <= "\udcff"
