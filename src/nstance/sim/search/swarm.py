"""Many seeds, on all cores, with what they prove added up.

A fault that never happened was not tested: `EXPECTED` names what a swarm must have seen, and what is missing is reported.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from nstance import points
from nstance.sim.search import workers
from nstance.sim.search.schedule import Verdict, play
from nstance.sim.setup import FAULTS, MOMENTS

CHUNK = 10
ENOUGH = 2000  # seeds after which everything must have been seen: the rarest is seen three times in 1,000

# Faults that happened, and signs that they mattered.
EXPECTED: tuple[str, ...] = (
    *(f"fault {name}" for name in FAULTS),
    *(f"storage {ending}" for ending in ("failed", "lost", "late", "cut off", "stale listing")),
    *(f"provider {ending} create" for ending in ("failed", "lost", "unsent", "late")),
    *(f"provider {ending} delete" for ending in ("failed", "lost", "unsent", "late", "ignored")),
    "provider failed look",
    "provider throttled",
    "provider partial listing",
    *(f"crash at {p.value}" for p in points.Point),
    *(f"pause at {p.value}" for p in points.Point),
    "lease changed hands",
    "term ended by Deposed",
    "create repeated, VM was there",
    "create applied after its tombstone",
    "delete repeated, VM was gone",
    "agent registration without answer",
    "agent registration refused unauthenticated",
    "drain acknowledged",
    "drain acknowledgement lost with its leader",
    "drain deadline passed",
    "bad boot",
    "broken boot",
    "left never ready",
    "rolled back",
    "rolled back to the last complete revision",
    "rollback ended",
    "rollout resumed",
    "registered with a load balancer",
    *(f"decided {code}" for code in ("rollout", "rollout-halted", "ready")),
    *(
        f"left {cause}"
        for cause in ("gone", "unhealthy", "spot-termination", "shutdown", "config-drift", "scale-down", "requested")
    ),
    "left unregistered",
    "left superseded",
    *(
        f"decided {code}"
        for code in ("suspect", "recovered", "mass-silence", "mass-absence", "drain-cancelled", "back-off", "orphan")
    ),
    *(f"decided {code}" for code in ("create-failed", "delete-failed", "refused", "throttled", "clock", "security")),
    "resigned",
    "restored",
    "adopted",
    "released",
    *(f"decided {code}" for code in ("unknown-vm", "adopted")),
)


class CannotResume(Exception):
    """The file that is to keep a run cannot be used."""


class Tally:
    """What all seeds so far add up to."""

    def __init__(self) -> None:
        self.seeds = 0
        self.counts: Counter[str] = Counter()
        self.failures: dict[int, tuple[str, ...]] = {}
        self.virtual_seconds = 0.0
        self.cpu_seconds = 0.0

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        self.counts.update(verdict.counts)
        self.virtual_seconds += verdict.virtual_seconds
        self.cpu_seconds += verdict.seconds
        if verdict.violations:
            self.failures[verdict.seed] = verdict.violations

    def unseen(self) -> list[str]:
        return [what for what in EXPECTED if not self.counts[what]]

    def summary(self) -> str:
        crashes = sum(n for what, n in self.counts.items() if what.startswith("crash at") or what == "fault kill")
        rate = self.seeds / self.cpu_seconds if self.cpu_seconds else 0.0
        return (
            f"{self.seeds} seeds, {self.virtual_seconds / 3600:.1f} virtual hours, {self.counts['faults']} faults, "
            f"{crashes} crashes, {self.counts['terms']} terms, {self.counts['calls create']} creates, "
            f"{self.counts['calls delete']} deletes, {self.pairs()} of {len(MOMENTS) * len(FAULTS)} pairs of a moment and "
            f"a fault; {rate:.1f} seeds a second and core; "
            f"{len(self.failures)} seeds with violations"
        )

    def pairs(self) -> int:
        """How many of the faults have struck just after how many kinds of moments."""
        return sum(what.startswith("aimed ") for what in self.counts)

    def dump(self) -> dict[str, object]:
        return {
            "seeds": self.seeds,
            "counts": dict(self.counts),
            "failures": {str(seed): list(found) for seed, found in self.failures.items()},
            "virtual_seconds": self.virtual_seconds,
            "cpu_seconds": self.cpu_seconds,
        }

    @classmethod
    def load(cls, raw: dict[str, object]) -> "Tally":
        tally = cls()
        tally.seeds = int(str(raw["seeds"]))
        counts: dict[str, int] = raw["counts"]  # type: ignore[assignment]
        tally.counts = Counter(counts)
        failures: dict[str, list[str]] = raw["failures"]  # type: ignore[assignment]
        tally.failures = {int(seed): tuple(found) for seed, found in failures.items()}
        tally.virtual_seconds = float(str(raw["virtual_seconds"]))
        tally.cpu_seconds = float(str(raw["cpu_seconds"]))
        return tally


def verdicts(seeds: Iterable[int], *, jobs: int, servers: int | None) -> Iterator[Verdict]:
    """In the order of the seeds."""
    run: Callable[[int], Verdict] = partial(play, servers=servers)
    if jobs <= 1:
        yield from map(run, seeds)
        return
    yield from workers.spread(run, seeds, jobs=jobs, chunk=CHUNK)


def swarm(
    *, seeds: int, start: int, servers: int | None, jobs: int, resume: Path | None = None, progress: bool = False
) -> Tally:
    """`resume`: a file that keeps how far a long run has come, also if it is interrupted. Raises CannotResume."""
    tally, done = Tally(), 0
    if resume is not None:
        tally, done = _resumed(resume, start, servers)
    block = seeds if resume is None else 20 * CHUNK * jobs
    while done < seeds:
        until = min(seeds, done + block)
        try:
            for verdict in verdicts(range(start + done, start + until), jobs=jobs, servers=servers):
                tally.add(verdict)
                done += 1
                if verdict.violations:
                    _say(f"seed {verdict.seed}: {verdict.violations[0]}  ({again(verdict.seed, servers)})", progress)
                if progress and (done % CHUNK == 0 or done == seeds):
                    _bar(done, seeds, len(tally.failures))
        finally:
            if resume is not None:
                _keep(resume, {"start": start, "servers": servers, "done": done, "tally": tally.dump()})
    if progress:
        sys.stderr.write("\n")
    return tally


def again(seed: int, servers: int | None) -> str:
    """What to type to see it."""
    return f"nstance-sim replay {seed}" + (f" --servers {servers}" if servers is not None else "")


def _resumed(path: Path, start: int, servers: int | None) -> tuple[Tally, int]:
    try:
        if not path.exists():
            _keep(path, {"start": start, "servers": servers, "done": 0, "tally": Tally().dump()})  # better told now
        kept = json.loads(path.read_text())
        if (kept["start"], kept["servers"]) != (start, servers):
            raise CannotResume(
                f"{path} keeps a run from seed {kept['start']} with servers={kept['servers']}, not from {start} with "
                f"servers={servers}: name another file, or remove this one"
            )
        return Tally.load(kept["tally"]), int(kept["done"])
    except OSError as problem:
        raise CannotResume(f"the run cannot be kept: {problem}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CannotResume(f"{path} is no file of an interrupted run: name another one, or remove it") from None


def _keep(path: Path, kept: dict[str, object]) -> None:
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(kept))
    os.replace(draft, path)


def _say(text: str, progress: bool) -> None:
    print(("\r\x1b[K" if progress else "") + text, flush=True)


def _bar(done: int, seeds: int, failures: int) -> None:
    width = 40
    filled = width * done // seeds
    bar = "#" * filled + "." * (width - filled)
    sys.stderr.write(f"\r[{bar}] {done}/{seeds}  {failures} with violations ")
    sys.stderr.flush()
