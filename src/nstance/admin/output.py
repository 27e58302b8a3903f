"""Results for people and for programs.

The trap: names and messages may come from anybody. Whatever could steer a terminal is shown as an escape, and nothing is
read as markup. Tables are cut to the width of a terminal only if there is one, and no narrower than their words: a word
in pieces is harder to read than a line that the terminal breaks.
"""

import datetime
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, object]

LONGEST_WORD = 30  # an instance ID; what is longer may be broken
LONGEST_LAST = 16  # the last column has sentences: less of the width is kept for it
GAP = 2  # between columns


def show(rows: Sequence[Row], form: str, *, columns: Sequence[str], whole: Collection[str] = ()) -> None:
    """Many of a kind. Columns in `whole` are for copying: they are never broken over lines."""
    if form != "table":
        _dump(list(rows), form)
    else:
        _table(columns, [[_cell(row.get(column)) for column in columns] for row in rows], whole)


def show_one(record: Row, form: str) -> None:
    if form != "table":
        _dump(record, form)
    else:
        _table((), [[name, _cell(value)] for name, value in record.items()])


def note(text: str) -> None:
    """For the person only: it never mixes with a result."""
    click.echo(plain(text), err=True)


def warn(warnings: Iterable[str]) -> None:
    """What a person should know although nothing failed: on standard error, each once."""
    for warning in dict.fromkeys(warnings):
        note(f"warning: {warning}")


def when(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def plain(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def document(value: object, form: str) -> str:
    if form == "json":
        import json

        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))


def _dump(value: object, form: str) -> None:
    click.echo(document(value, form), nl=False)


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value))
    return "" if value is None else plain(str(value))


def console() -> "Console":
    from rich.console import Console

    width = None if sys.stdout.isatty() else 100_000
    return Console(width=width, soft_wrap=False, highlight=False, markup=False)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], whole: Collection[str] = ()) -> None:
    from rich.console import ConsoleDimensions
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=bool(columns), header_style="bold")
    least, count = 0, len(columns or (rows[0] if rows else ()))
    for index in range(count):
        heading = columns[index].upper().replace("_", " ") if columns else ""
        words = [word for text in (heading, *(row[index] for row in rows)) for word in text.split()]
        longest = min(max(map(len, words), default=0), LONGEST_WORD if index < count - 1 else LONGEST_LAST)
        least += longest + GAP
        kept = bool(columns) and columns[index] in whole
        style = "" if columns or index else "bold"
        table.add_column(heading, overflow="fold", no_wrap=kept, min_width=longest, style=style)
    for row in rows:
        table.add_row(*map(Text, row))
    screen = console()
    if sys.stdout.isatty():
        screen.size = ConsoleDimensions(max(screen.width, least), screen.height)
        screen.print(table)
        return
    with screen.capture() as written:  # programs read lines, and columns are filled up with blanks
        screen.print(table)
    click.echo("".join(f"{line.rstrip()}\n" for line in written.get().splitlines()), nl=False)
