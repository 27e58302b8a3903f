"""Splits a template into tokens, lazily and in one pass.

Spaces separate words, so each token knows whether a space precedes it. The traps are the trim markers:
`{{- ` and ` -}}` need their space, `{{-3}}` is a number; and a comment must touch its braces.
"""

import re
from bisect import bisect_right
from collections.abc import Generator, Iterator
from enum import Enum
from typing import NamedTuple

from nstance.gotemplate.errors import TemplateError

TokenKind = Enum(
    "TokenKind",
    "TEXT OPEN CLOSE FIELD DOT VARIABLE WORD STRING RAW CHAR NUMBER PIPE DECLARE ASSIGN LEFT RIGHT OTHER END",
)


class Token(NamedTuple):
    kind: TokenKind
    text: str
    at: int
    spaced: bool = False


class Source:
    """A template's text, with the line and column of each offset."""

    __slots__ = ("_lines", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines: list[int] | None = None

    def error(self, message: str, at: int) -> TemplateError:
        line, column = self.position(at)
        return TemplateError(message, line, column)

    def position(self, at: int) -> tuple[int, int]:
        if self._lines is None:
            self._lines = [0, *(found.end() for found in re.finditer("\n", self.text))]
        line = bisect_right(self._lines, at)
        return line, at - self._lines[line - 1] + 1


SPACES = " \t\r\n"

_CLOSE = re.compile(r"([ \t\r\n]+-)?\}\}")
_SPACE = re.compile(r"[ \t\r\n]+")
_TRIM_RIGHT = re.compile(r"\{\{-[ \t\r\n]")
_COMMENT_END = re.compile(r"([ \t\r\n]-)?\}\}")
# What may follow a name; `$x=1` and `.a+1` are errors.
_NAME_ENDS = re.compile(r"[ \t\r\n.,|:()]|\}\}|\Z")
_DIGITS = r"[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?"
_TOKEN = re.compile(
    rf"""
    (?P<STRING>"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*")
    |(?P<RAW>`[^`]*`)
    |(?P<CHAR>'[^'\\\n]*(?:\\[^\n][^'\\\n]*)*')
    |(?P<NUMBER>(?=[+-]|\.?[0-9])[+-]?(?:
        0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?
        |0[oO][0-7_]*|0[bB][01_]*|{_DIGITS}))
    |(?P<VARIABLE>\$\w*)
    |(?P<FIELD>\.\w+)
    |(?P<DOT>\.)
    |(?P<WORD>\w+)
    |(?P<DECLARE>:=)|(?P<ASSIGN>=)|(?P<PIPE>\|)|(?P<LEFT>\()|(?P<RIGHT>\))
    |(?P<OTHER>[!-~])
    """,
    re.VERBOSE,
)
_UNFINISHED = {'"': "unterminated quoted string", "`": "unterminated raw string", "'": "unterminated character"}
_NAMES = (TokenKind.VARIABLE, TokenKind.FIELD, TokenKind.DOT, TokenKind.WORD)


def tokens(source: Source) -> Iterator[Token]:
    text, position, trims = source.text, 0, False
    while True:
        found = text.find("{{", position)
        end = len(text) if found < 0 else found
        plain = text[position:end]
        if trims:
            stripped = plain.lstrip(SPACES)
            position += len(plain) - len(stripped)
            plain = stripped
        trim_before = found >= 0 and _TRIM_RIGHT.match(text, found) is not None
        if trim_before:
            plain = plain.rstrip(SPACES)
        if plain:
            yield Token(TokenKind.TEXT, plain, position)
        if found < 0:
            yield Token(TokenKind.END, "", len(text))
            return
        start = found + (4 if trim_before else 2)
        if text.startswith("/*", start):
            position, trims = _comment(source, found, start)
        else:
            yield Token(TokenKind.OPEN, "{{", found)
            close = yield from _action(source, found, start)
            position, trims = close.at + len(close.text), close.text != "}}"


def _comment(source: Source, opened: int, start: int) -> tuple[int, bool]:
    end = source.text.find("*/", start + 2)
    if end < 0:
        raise source.error("unclosed comment", opened)
    close = _COMMENT_END.match(source.text, end + 2)
    if close is None:
        raise source.error("unexpected text after a comment; expected '*/}}'", end)
    return close.end(), close.group(1) is not None


def _action(source: Source, opened: int, position: int) -> Generator[Token, None, Token]:
    """The tokens up to the closing braces; returns the last one."""
    text = source.text
    parentheses: list[int] = []  # offsets of open ones
    while True:
        close = _CLOSE.match(text, position)
        if close is not None:
            if parentheses:
                raise source.error("unclosed left parenthesis", parentheses[-1])
            token = Token(TokenKind.CLOSE, close.group(), close.start(), spaced=close.group(1) is not None)
            yield token
            return token
        space = _SPACE.match(text, position)
        if space is not None:
            position = space.end()
            if _CLOSE.match(text, position) is not None:
                continue
        found = _TOKEN.match(text, position)
        if found is None:
            raise _unreadable(source, opened, position)
        kind = TokenKind[found.lastgroup or ""]
        token = Token(kind, found.group(), position, spaced=space is not None)
        position = found.end()
        if kind is TokenKind.NUMBER and re.match(r"[\w+-]", text[position : position + 1]):
            raise source.error("bad number syntax", token.at)
        if kind in _NAMES and (not _is_name(token.text) or not _NAME_ENDS.match(text, position)):
            raise source.error(f"bad character in or after '{token.text}'; expected a space", token.at)
        if kind is TokenKind.LEFT:
            parentheses.append(token.at)
        elif kind is TokenKind.RIGHT:
            if not parentheses:
                raise source.error("unexpected right parenthesis", token.at)
            parentheses.pop()
        yield token


def _unreadable(source: Source, opened: int, position: int) -> TemplateError:
    if position >= len(source.text):
        return source.error("unclosed action; expected '}}'", opened)
    letter = source.text[position]
    return source.error(_UNFINISHED.get(letter, f"unexpected character U+{ord(letter):04X} in an action"), position)


def _is_name(name: str) -> bool:
    """Letters, decimal digits and underscores; Python's \\w matches more."""
    return name.isascii() or all(letter in "_.$" or letter.isalpha() or letter.isdecimal() for letter in name)
