"""`wait`."""

import shutil
import sys

import click

from nstance.admin import output
from nstance.admin.help import Command
from nstance.admin.options import name, positive
from nstance.admin.reach import Reach, reach_flags

EXAMPLES = """\
nstance-admin wait web --shard us-west-2a
nstance-admin wait --all-shards --within 5m
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("groups", nargs=-1, type=name, metavar="[GROUP]...")
@click.option(
    "--within", type=positive, default="10m", show_default=True, metavar="DURATION", help="How long to wait at most."
)
@reach_flags
def command(reach: Reach, groups: tuple[str, ...], within: float) -> None:
    """Wait until the groups are stable: as many ready instances as wished, all of the current revision, none leaving,
    nothing blocked, and no rollout under way or halted.

    Without GROUP: all groups. Progress is told on standard error. The exit code is 1 if the time is over."""
    from nstance.admin.running import run
    from nstance.admin.shard import asking, waiting
    from nstance.clock import SystemClock

    progress = _Progress()

    async def work() -> list[str]:
        async with asking.opened(reach) as found:
            concerns = await waiting.until_stable(found, groups, within=within, progress=progress, clock=SystemClock())
            await found[0].renew_if_due()
            return concerns

    try:
        concerns = run(work())
    finally:
        progress.end()
    for line in concerns:
        output.note(line)
    output.note("stable")


class _Progress:
    """On a terminal one line that changes; elsewhere a line for each change."""

    def __init__(self) -> None:
        self._last = ""
        self._rewrites = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            shown = output.plain(text)
            click.echo(f"\r\x1b[K{shown if len(shown) <= width else shown[: width - 1] + '…'}", err=True, nl=False)
        else:
            output.note(text)

    def end(self) -> None:
        if self._rewrites and self._last:
            click.echo("\r\x1b[K", err=True, nl=False)
