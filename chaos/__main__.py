"""`make chaos`: breaks two servers, dev-s3 and many real agents on this machine. Linux only.

python -m chaos --agents 20 --seconds 60 --seed 7
python -m chaos --faults kill_leader,cut_storage
python -m chaos failovers
python -m chaos busy --seconds 3600
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import uvloop

from chaos import busy, failovers, report, run
from chaos.faults import FAULTS

T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if not sys.platform.startswith("linux"):
        sys.exit("chaos: needs Linux (/proc, process limits, all of 127.0.0.0/8)")
    if options.what == "failovers":
        return failovers.main(rounds=options.rounds, pairs=options.pairs, json=options.json, log=_log)
    if options.what == "busy":
        watched = uvloop.run(_stoppable(busy.watch(load=options.load, seconds=options.seconds, log=_log)))
        sys.stdout.write(busy.summary(watched) + "\n")
        return 1 if watched.changes else 0
    plan = run.Plan(agents=options.agents, seconds=options.seconds, seed=options.seed, faults=options.faults)
    try:
        result = uvloop.run(_stoppable(run.Run(plan, _log).play()))
    except (asyncio.CancelledError, KeyboardInterrupt):
        _log("interrupted: all started processes have ended")
        return 130
    except TimeoutError as problem:
        sys.exit(f"chaos: {problem} (seed {plan.seed})")
    if options.json:
        sys.stdout.write(report.as_json(result) + "\n")
    else:
        sys.stdout.write(f"\n{report.table(result)}\n\n{report.summary(result)}\n")
    return 1 if result.verdict.problems else 0


async def _stoppable(work: Coroutine[Any, Any, T]) -> T:
    """Ctrl-C and SIGTERM end the work in order; a second one does not interrupt the cleanup."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return await task


def _log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("what", nargs="?", choices=("run", "failovers", "busy"), default="run", help="default: run")
    add("--agents", type=int, default=200, help="real agents, about 34 MB each (200)")
    add("--seconds", type=float, default=300.0, help="duration of the faults (300)")
    add("--seed", type=int, default=1, help="decides the order of the faults (1)")
    add("--faults", type=_faults, default=tuple(FAULTS), metavar="NAME,…", help="some of: " + ", ".join(FAULTS))
    add("--rounds", type=int, default=4, help="failovers: rounds of each kind (4)")
    add("--pairs", type=int, default=5, help="failovers: pairs of servers at a time (5)")
    add("--load", type=int, default=8, help="busy: processes that burn processor time (8)")
    add("--json", action="store_true", help="the result as JSON on standard output")
    return parser


def _faults(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in FAULTS:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(FAULTS)}, found {name!r}")
    return names or tuple(FAULTS)


if __name__ == "__main__":
    sys.exit(main())
