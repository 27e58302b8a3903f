"""`nstance-sim`: plays whole shards in virtual time, with random faults, at every crash point, or as a forecast."""

import argparse
import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from nstance.sim.faults.themes import draw
from nstance.sim.forecasting import command as forecast_command
from nstance.sim.forecasting.scenarios import SCENARIOS
from nstance.sim.search import exhaustive
from nstance.sim.search.schedule import play
from nstance.sim.search.swarm import FULL_SWARM, ResumeError, replay_command, swarm

MAX_AGENTS = 20_000
MAX_HOURS = 24 * 7


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nstance-sim", description=__doc__)
    parser.add_argument("--version", action="version", version=f"nstance-sim {metadata.version('nstance')}")
    commands = parser.add_subparsers(required=True, metavar="command")
    cores = os.cpu_count() or 1
    count = _number(int, 1, 10**9, "of them")

    swarm_command = commands.add_parser("swarm", help="play many seeds; exit 1 if one of them violates an invariant")
    swarm_command.add_argument("--seeds", type=count, default=2000, help="how many (default 2000)")
    swarm_command.add_argument("--start", type=int, default=0, help="the first one (default 0)")
    swarm_command.add_argument(
        "--servers", type=int, choices=(2, 3), help="of the shard; each seed draws it if left out"
    )
    swarm_command.add_argument("--jobs", type=count, default=cores, help=f"processes (default {cores})")
    swarm_command.add_argument("--resume", type=Path, help="save the progress in this file, and continue from there")
    swarm_command.add_argument("--counts", action="store_true", help="print how often each fault and outcome happened")
    swarm_command.set_defaults(run=_swarm)

    replay = commands.add_parser("replay", help="print the trace of one seed")
    replay.add_argument("seed", type=int)
    replay.add_argument("--servers", type=int, choices=(2, 3))
    replay.add_argument("--twice", action="store_true", help="play it again and compare")
    replay.set_defaults(run=_replay)

    exhaustive_command = commands.add_parser(
        "exhaustive", help="crash and pause at every named point, and let every call fail"
    )
    exhaustive_command.add_argument("--pairs", action="store_true", help="also all pairs of points")
    exhaustive_command.add_argument("--jobs", type=count, default=cores, help=f"processes (default {cores})")
    exhaustive_command.add_argument(
        "--only", metavar="CASE", help="print the trace of one case, named as it was printed"
    )
    exhaustive_command.set_defaults(run=_exhaustive)

    run = commands.add_parser(
        "run",
        help="forecast what happens to the groups of a configuration",
        description="Plays a scenario with the groups of a configuration in virtual time, prints a table and draws a chart.",
    )
    run.add_argument("--config", type=Path, required=True, help="a shard's config.jsonc")
    run.add_argument("--scenario", choices=list(SCENARIOS), required=True)
    agents = _number(int, 1, MAX_AGENTS, "instances")
    run.add_argument("--agents", type=agents, help="scale the groups to this many instances in total")
    run.add_argument("--all-spot", action="store_true", help="spot-storm: as if every VM were a spot VM")
    run.add_argument(
        "--hours", type=_number(float, 0.05, MAX_HOURS, "hours"), default=2.0, help="virtual time (default 2)"
    )
    run.add_argument(
        "--boot",
        type=_number(float, 0.0, 3600.0, "seconds"),
        metavar="SECONDS",
        help="until the agent of a new VM registers (default 20 to 60; with a local provider 0.5 to 4)",
    )
    run.add_argument("--svg", type=Path, help="file for the chart (default forecast-SCENARIO.svg)")
    run.add_argument("--json", type=Path, help="file for the points of the chart, for programs")
    run.set_defaults(run=forecast_command.run)
    return parser


def _number(kind: type[int] | type[float], least: float, most: float, unit: str) -> Callable[[str], float]:
    """An argparse type that accepts plain numbers between `least` and `most`."""

    def parse(text: str) -> float:
        try:
            number = kind(text) if text.isascii() else least - 1
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"expected {least:g} to {most:,g} {unit}, found {text!r}")
        return number

    return parse


def _swarm(options: argparse.Namespace) -> int:
    try:
        tally = swarm(
            seeds=options.seeds,
            start=options.start,
            servers=options.servers,
            jobs=options.jobs,
            resume=options.resume,
            progress=sys.stderr.isatty(),
        )
    except ResumeError as problem:
        print(problem, file=sys.stderr)
        return 2
    if options.counts:
        for name, number in sorted(tally.counts.items()):
            print(f"{number:9}  {name}")
    print(tally.summary())
    missing = tally.missing() if tally.seeds >= FULL_SWARM else []
    if missing:
        print(f"never happened: {', '.join(missing)}")
    for seed in tally.failures:
        print(f"replay it: {replay_command(seed, options.servers)}")
    return 1 if tally.failures or missing else 0


def _replay(options: argparse.Namespace) -> int:
    print(draw(options.seed, servers=options.servers))
    verdict = play(options.seed, servers=options.servers, on_trace=_print_trace)
    print(f"trace {verdict.hash}")
    if options.twice and play(options.seed, servers=options.servers).hash != verdict.hash:
        print("the second run has another trace: the simulation is not deterministic")
        return 2
    for violation in verdict.violations:
        print(violation)
    return 1 if verdict.violations else 0


def _print_trace(line: str) -> None:
    """The reader may close the pipe early: the simulated shard must not notice."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exhaustive(options: argparse.Namespace) -> int:
    if options.only is not None:
        case = next((case for case in exhaustive.cases(with_pairs=True) if str(case) == options.only), None)
        if case is None:
            print(
                f"there is no case {options.only!r}: expected the text before the colon of a printed case",
                file=sys.stderr,
            )
            return 2
        outcome = exhaustive.play(case, on_trace=_print_trace)
        return 1 if outcome.violations else 0
    failed = exhaustive.run_all(with_pairs=options.pairs, jobs=options.jobs)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
