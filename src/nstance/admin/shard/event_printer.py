"""Prints an event as a line for people, or as a document for programs."""

import shutil
import sys
import textwrap
from collections.abc import Sequence

import click

from nstance.admin import output
from nstance.admin.shard.records import Record
from nstance.model.decision import TROUBLE

CONSOLE = "last console output:\n"  # how the server begins an event with console output; lines follow
_PROBLEMS = frozenset(code.value for code in TROUBLE)
_REASON_WIDTH = 16  # most reasons fit
_MIN_MESSAGE_WIDTH = 32  # below that, wrapping is left to the terminal


class Printer:
    def __init__(self, form: str, *, several: bool) -> None:
        self._form = form
        self._several = several
        self._width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0

    def many(self, events: Sequence[Record], *, follow: bool) -> str:
        if self._form == "table" or follow:
            return "".join(map(self.one, events))
        return output.document(list(events), self._form)

    def one(self, event: Record) -> str:
        return self._line(event) if self._form == "table" else output.part(event, self._form)

    def _line(self, event: Record) -> str:
        """Time and reason come first; a long message continues below itself."""
        where = "/".join(filter(None, (event["shard"] if self._several else "", event["group"])))
        time = f"{event['time'][5:10]} {event['time'][11:19]}Z"
        reason = f"{output.escape(event['reason']):<{_REASON_WIDTH}}"
        instance = f" ({event['instance_id']})" if event["instance_id"] not in event["message"] else ""
        message, console = event["message"], ""
        if message.startswith(CONSOLE):
            shown = message.removeprefix(CONSOLE).splitlines()
            message, console = CONSOLE.strip(), "".join(f"    {output.escape(line)}\n" for line in shown)
        text = output.escape(f"{where}: " * bool(where) + message + instance)
        indent = " " * (len(time) + len(reason) + 4)
        if self._width >= len(indent) + _MIN_MESSAGE_WIDTH:
            text = textwrap.fill(
                text, self._width - 1, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
            ).lstrip(" ")
        styled = click.style(reason, fg="yellow" if event["reason"] in _PROBLEMS else "green")
        return f"{click.style(time, dim=True)}  {styled}  {text}\n{console}"
