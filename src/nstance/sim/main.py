"""`nstance-sim`: what would happen if. Swarms of random schedules, every crash point, and the story of one seed."""

import argparse
import os
import sys
from importlib import metadata
from pathlib import Path

from nstance.sim.forecasting import command
from nstance.sim.forecasting.scenarios import SCENARIOS
from nstance.sim.search import exhaustive
from nstance.sim.search.schedule import play
from nstance.sim.search.swarm import ENOUGH, CannotResume, again, swarm
from nstance.sim.setup import draw

MOST_AGENTS = 20_000
MOST_HOURS = 24 * 7


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

    many = commands.add_parser("swarm", help="play many seeds; exit 1 if one of them violates an invariant")
    many.add_argument("--seeds", type=_whole, default=2000, help="how many (default 2000)")
    many.add_argument("--start", type=int, default=0, help="the first one (default 0)")
    many.add_argument("--servers", type=int, choices=(2, 3), help="of the shard; each seed draws it if left out")
    many.add_argument("--jobs", type=_whole, default=cores, help=f"processes (default {cores})")
    many.add_argument("--resume", type=Path, help="keep how far the run has come in this file, and go on from there")
    many.add_argument("--counts", action="store_true", help="print how often everything happened")
    many.set_defaults(run=_swarm)

    one = commands.add_parser("replay", help="tell the story of one seed")
    one.add_argument("seed", type=int)
    one.add_argument("--servers", type=int, choices=(2, 3))
    one.add_argument("--twice", action="store_true", help="play it again and compare")
    one.set_defaults(run=_replay)

    every = commands.add_parser("exhaustive", help="crash and pause at every named point, and bend every call")
    every.add_argument("--pairs", action="store_true", help="also all pairs of points")
    every.add_argument("--jobs", type=_whole, default=cores, help=f"processes (default {cores})")
    every.add_argument("--only", metavar="CASE", help="tell the story of one case, named as it was printed")
    every.set_defaults(run=_exhaustive)

    mine = commands.add_parser(
        "run",
        help="what would happen to the groups of a configuration",
        description="Plays a scenario with the groups of a configuration in virtual time, prints it and draws it.",
    )
    mine.add_argument("--config", type=Path, required=True, help="a shard's config.jsonc")
    mine.add_argument("--scenario", choices=list(SCENARIOS), required=True)
    mine.add_argument("--agents", type=_agents, help="grow or shrink the groups to so many instances in all")
    mine.add_argument("--all-spot", action="store_true", help="spot-storm: as if every VM were a spot VM")
    mine.add_argument("--hours", type=_hours, default=2.0, help="of virtual time (default 2)")
    mine.add_argument(
        "--boot",
        type=_seconds,
        metavar="SECONDS",
        help="that a VM takes until its agent speaks (default 20 to 60; a local provider's processes take 0.5 to 4)",
    )
    mine.add_argument("--svg", type=Path, help="draw it into this file (default forecast-SCENARIO.svg)")
    mine.set_defaults(run=command.run)
    return parser


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, found {text!r}")
    return int(text)


def _agents(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= MOST_AGENTS):
        raise argparse.ArgumentTypeError(f"expected 1 to {MOST_AGENTS:,} instances, found {text!r}")
    return int(text)


def _hours(text: str) -> float:
    return _number(text, 0.05, MOST_HOURS, "hours")


def _seconds(text: str) -> float:
    return _number(text, 0.0, 3600.0, "seconds")


def _number(text: str, least: float, most: float, unit: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"expected {least:g} to {most:g} {unit}, found {text!r}")
    return number


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
    except CannotResume as problem:
        print(problem, file=sys.stderr)
        return 2
    if options.counts:
        for what, number in sorted(tally.counts.items()):
            print(f"{number:9}  {what}")
    print(tally.summary())
    unseen = tally.unseen() if tally.seeds >= ENOUGH else []
    if unseen:
        print(f"never happened: {', '.join(unseen)}")
    for seed in tally.failures:
        print(f"to see it again: {again(seed, options.servers)}")
    return 1 if tally.failures or unseen else 0


def _replay(options: argparse.Namespace) -> int:
    print(draw(options.seed, servers=options.servers))
    verdict = play(options.seed, servers=options.servers, tell=_tell)
    print(f"trace {verdict.hash}")
    if options.twice and play(options.seed, servers=options.servers).hash != verdict.hash:
        print("a second run went another way: the simulation is not deterministic")
        return 2
    for violation in verdict.violations:
        print(violation)
    return 1 if verdict.violations else 0


def _tell(line: str) -> None:
    """Of a story that may be longer than its reader's patience: the simulated shard must not notice a closed pipe."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exhaustive(options: argparse.Namespace) -> int:
    if options.only is not None:
        case = next((case for case in exhaustive.cases(with_pairs=True) if str(case) == options.only), None)
        if case is None:
            print(f"there is no case {options.only!r}; its name is what is printed before the colon", file=sys.stderr)
            return 2
        outcome = exhaustive.play(case, tell=_tell)
        return 1 if outcome.violations else 0
    failed = exhaustive.run_all(with_pairs=options.pairs, jobs=options.jobs)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
