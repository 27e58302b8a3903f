"""Prints the status of shards, once or again and again.

The trap of repeating it: a shard that does not answer must be shown as such and must not end the watch.
"""

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator

import click

from nstance.admin import errors, output
from nstance.admin.event_loop import run
from nstance.admin.shard import fanout, overview, status_tree
from nstance.admin.shard.overview import ShardView
from nstance.admin.shard_flags import ShardSelection
from nstance.clock import SystemClock

HOME, CLEAR_LINE, CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
ALTERNATE, NORMAL = "\x1b[?1049h", "\x1b[?1049l"


def show(selection: ShardSelection) -> None:
    """Raises CommandError if a shard does not answer."""
    now = output.now()
    answers = fanout.call_shards(selection, lambda client: overview.load_shard(client, now=now))
    click.echo(_text(selection, answers, now), nl=False)
    answers.check()


def watch(selection: ShardSelection, *, interval: float) -> None:
    """Until Ctrl-C."""
    is_screen = sys.stdout.isatty() and selection.is_table
    with contextlib.suppress(KeyboardInterrupt), _alternate_screen() if is_screen else contextlib.nullcontext():
        run(_repeat(selection, interval=interval, is_screen=is_screen))


async def _repeat(selection: ShardSelection, *, interval: float, is_screen: bool) -> None:
    clock, last = SystemClock(), ""
    async with fanout.open_clients(selection) as clients:
        while True:
            now = clock.wall()
            answers = await fanout.call_each(clients, lambda client: overview.load_shard(client, now=clock.wall()))
            text = _text(selection, answers, now)
            failures = [f"shard {shard}: {errors.explain(error)}" for shard, error in answers.failures]
            if is_screen:
                title = f"{output.timestamp(now)}  every {interval:g} s, Ctrl-C ends"
                _redraw([title, "", *text.splitlines(), *map(output.escape, failures)])
            elif text != last:
                click.echo(_one_line(text) if selection.form == "json" else text, nl=False)
                for line in failures:
                    output.note(line)
                last = text
            await fanout.renew_if_due(clients, answers)
            await clock.sleep(interval)


def _one_line(text: str) -> str:
    """A program that follows reads line by line."""
    return json.dumps(json.loads(text), ensure_ascii=False) + "\n"


def _text(selection: ShardSelection, answers: fanout.Answers[ShardView], now: float) -> str:
    if not selection.is_table:
        return output.document({"shards": [overview.document(view) for _, view in answers.results]}, selection.form)
    trees = {shard: status_tree.draw(shard, view, now=now) for shard, view in answers.results}
    trees |= {shard: status_tree.unreachable(shard) for shard, _ in answers.failures}
    console = output.console()
    with console.capture() as captured:
        for shard in sorted(trees):
            console.print(trees[shard])
    return captured.get()


@contextlib.contextmanager
def _alternate_screen() -> Iterator[None]:
    click.echo(ALTERNATE + HIDE_CURSOR, nl=False)
    try:
        yield
    finally:
        click.echo(NORMAL + SHOW_CURSOR, nl=False)


def _redraw(lines: list[str]) -> None:
    """Line by line over the old ones, so that nothing flickers."""
    height = shutil.get_terminal_size().lines
    if len(lines) > height:
        lines = [*lines[: height - 1], f"and {len(lines) - height + 1} more lines: enlarge the terminal, or use `top`"]
    click.echo(HOME + f"{CLEAR_LINE}\n".join(lines) + CLEAR_LINE + CLEAR_REST, nl=False)
