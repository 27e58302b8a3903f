"""Results as tables for people, and as JSON, YAML, names or a JSONPath for programs.

The trap: names and messages may come from anybody. Control characters are escaped and nothing is read as markup. Tables
are fitted to the terminal, if there is one, but no column gets narrower than its words: a broken word is harder to read
than a line that the terminal wraps.
"""

import datetime
import logging
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, object]

MAX_WORD_WIDTH = 30  # an instance ID; longer words may be broken
MAX_LAST_WORD_WIDTH = 16  # the last column has sentences: it needs less
COLUMN_GAP = 2
JSONPATH = "jsonpath="
NAME_KEYS = ("instance_id", "operator", "revision", "group", "name", "shard")  # the first that a record has names it

_log: logging.Logger | None = None  # for notes, instead of standard error


def print_rows(rows: Sequence[Row], form: str, *, columns: Sequence[str], unbroken: Collection[str] = ()) -> None:
    """Columns in `unbroken` are for copying: they are never broken over lines."""
    if form != "table":
        _dump(list(rows), form)
    else:
        _table(columns, [[_cell(row.get(column)) for column in columns] for row in rows], unbroken)


def print_record(record: Row, form: str) -> None:
    if form != "table":
        _dump(record, form)
    else:
        _table((), [[name, _cell(value)] for name, value in record.items()])


def print_lines(lines: Sequence[str], *, indent: int) -> None:
    """After a blank line, if there are any. On a terminal a long one continues below itself, indented."""
    width = shutil.get_terminal_size().columns - 1 if sys.stdout.isatty() else 0
    if width > 2 * indent:
        import textwrap

        below = " " * indent
        wrapped = (textwrap.wrap(line, width, subsequent_indent=below, break_on_hyphens=False) for line in lines)
        lines = [line for each in wrapped for line in each]
    if lines:
        click.echo("\n".join(("", *map(escape, lines))))


def note(text: str) -> None:
    """A message for the person, on standard error, so that it never mixes with a result."""
    if _log is not None:
        _log.info(text)
    else:
        click.echo(escape(text), err=True)


def log_notes() -> None:
    """From now on notes are records of the log, as JSON: for a command that runs on."""
    global _log
    from nstance.telemetry import logs

    logs.configure(json=True, debug=False, program="nstance-admin")
    _log = logging.getLogger("nstance.admin")


def warn(warnings: Iterable[str]) -> None:
    """Each warning once, on standard error."""
    for warning in dict.fromkeys(warnings):
        note(f"warning: {warning}")


def now() -> float:
    from nstance.clock import SystemClock

    return SystemClock().wall()


def timestamp(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def escape(text: str) -> str:
    """Replaces what could control a terminal."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def document(value: object, form: str) -> str:
    if form == "json":
        import json

        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    if form == "name":
        return "".join(f"{escape(each)}\n" for each in _names(value))
    if form.startswith(JSONPATH):
        from nstance.admin import jsonpath

        try:
            text = jsonpath.Template(form.removeprefix(JSONPATH)).render(value)
        except jsonpath.JsonPathError as error:
            raise click.UsageError(f"-o jsonpath: {error}") from error
        return text if text.endswith("\n") or not text else f"{text}\n"
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))


def part(value: object, form: str) -> str:
    """One document of many that are printed as they come: JSON on one line, and a mark before each of YAML."""
    if form == "json":
        import json

        return json.dumps(value, ensure_ascii=False) + "\n"
    return ("---\n" if form == "yaml" else "") + document(value, form)


def _names(value: object) -> Iterator[str]:
    """Of each record what a command takes to name it."""
    if isinstance(value, list):
        for each in value:
            yield from _names(each)
    elif isinstance(value, dict):
        lists = [each for each in value.values() if isinstance(each, list)]
        if len(value) == 1 and lists:
            yield from _names(lists[0])
            return
        texts = [text for key, text in value.items() if isinstance(text, str) and text and key != "shard"]
        known = [value[key] for key in NAME_KEYS if value.get(key)]
        yield str((known or texts or [value.get("shard", "")])[0])


def _dump(value: object, form: str) -> None:
    click.echo(document(value, form), nl=False)


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value))
    return "" if value is None else escape(str(value))


def console() -> "Console":
    from rich.console import Console

    width = None if sys.stdout.isatty() else 100_000
    return Console(width=width, soft_wrap=False, highlight=False, markup=False)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], unbroken: Collection[str] = ()) -> None:
    from rich.console import ConsoleDimensions
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=bool(columns), header_style="bold")
    min_width, count = 0, len(columns or (rows[0] if rows else ()))
    for index in range(count):
        heading = columns[index].upper().replace("_", " ") if columns else ""
        words = [word for text in (heading, *(row[index] for row in rows)) for word in text.split()]
        longest = min(max(map(len, words), default=0), MAX_WORD_WIDTH if index < count - 1 else MAX_LAST_WORD_WIDTH)
        min_width += longest + COLUMN_GAP
        no_wrap = bool(columns) and columns[index] in unbroken
        style = "" if columns or index else "bold"
        table.add_column(heading, overflow="fold", no_wrap=no_wrap, min_width=longest, style=style)
    for row in rows:
        table.add_row(*map(Text, row))
    screen = console()
    if sys.stdout.isatty():
        screen.size = ConsoleDimensions(max(screen.width, min_width), screen.height)
        screen.print(table)
        return
    with screen.capture() as written:  # without the blanks that fill up columns
        screen.print(table)
    click.echo("".join(f"{line.rstrip()}\n" for line in written.get().splitlines()), nl=False)


class ProgressLine:
    """On a terminal one line that is rewritten; elsewhere a new line for each change."""

    def __init__(self) -> None:
        self._last = ""
        self._is_terminal = sys.stderr.isatty()

    def show(self, text: str, how_far: str = "") -> None:
        """`how_far`: a bar and an estimate. Elsewhere than on a terminal they make no line of their own."""
        line = escape(f"{how_far}  {text}" if how_far else text)
        changing = line if self._is_terminal else text
        if changing == self._last:
            return
        self._last = changing
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"\r\x1b[K{line if len(line) <= width else line[: width - 1] + '…'}", err=True, nl=False)
        else:
            note(line)

    def clear(self) -> None:
        if self._is_terminal and self._last:
            click.echo("\r\x1b[K", err=True, nl=False)
