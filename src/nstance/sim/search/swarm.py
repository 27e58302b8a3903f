"""Plays many seeds on all cores and adds up what they proved.

A fault that never happened was not tested: `EXPECTED` names what a swarm must see, and what is missing is reported.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nstance import points
from nstance.sim.faults.themes import FAULTS, MOMENTS
from nstance.sim.search import workers
from nstance.sim.search.schedule import Verdict, play

CHUNK = 10
FULL_SWARM = 2000  # seeds that must see everything expected: the rarest happens three times in 1,000

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
    "term ended by DeposedError",
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
    "left failing checks",
    "checks sent to an instance",
    "checks sent to an instance of an earlier revision",
    "rolled back",
    "rolled back to the last complete revision",
    "rollback ended",
    "rollout resumed",
    "registered with a load balancer",
    "resigned",
    "restored",
    "adopted",
    "released",
    *(f"left {cause}" for cause in ("gone", "unhealthy", "spot-termination", "shutdown", "config-drift", "scale-down")),
    *(f"left {cause}" for cause in ("requested", "unregistered", "superseded", "forced-expiry", "eligible-expiry")),
    *(f"decided {code}" for code in ("rollout", "rollout-halted", "ready", "suspect", "recovered", "mass-silence")),
    *(f"decided {code}" for code in ("mass-absence", "drain-cancelled", "back-off", "orphan", "unknown-vm", "adopted")),
    *(f"decided {code}" for code in ("create-failed", "delete-failed", "refused", "throttled", "clock", "security")),
)


class ResumeError(Exception):
    """The progress file of a run cannot be used."""


@dataclass
class Tally:
    """The sum of all verdicts so far."""

    seeds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[int, tuple[str, ...]] = field(default_factory=dict)
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        self.counts.update(verdict.counts)
        self.virtual_seconds += verdict.virtual_seconds
        self.cpu_seconds += verdict.seconds
        if verdict.violations:
            self.failures[verdict.seed] = verdict.violations

    def missing(self) -> list[str]:
        return [name for name in EXPECTED if not self.counts[name]]

    def summary(self) -> str:
        crashes = sum(n for name, n in self.counts.items() if name.startswith("crash at") or name == "fault kill")
        rate = self.seeds / self.cpu_seconds if self.cpu_seconds else 0.0
        return (
            f"{self.seeds} seeds, {self.virtual_seconds / 3600:.1f} virtual hours, {self.counts['faults']} faults, "
            f"{crashes} crashes, {self.counts['terms']} terms, {self.counts['calls create']} creates, "
            f"{self.counts['calls delete']} deletes, {self.pairs()} of {len(MOMENTS) * len(FAULTS)} pairs of a moment and "
            f"a fault; {rate:.1f} seeds a second and core; "
            f"{len(self.failures)} seeds with violations"
        )

    def pairs(self) -> int:
        """How many combinations of a moment and a fault that followed it have occurred."""
        return sum(name.startswith("aimed ") for name in self.counts)

    @classmethod
    def load(cls, raw: dict[str, Any]) -> "Tally":
        """From its `vars` after a way through JSON."""
        failures = {int(seed): tuple(violations) for seed, violations in raw["failures"].items()}
        times = float(raw["virtual_seconds"]), float(raw["cpu_seconds"])
        return cls(int(raw["seeds"]), Counter(raw["counts"]), failures, *times)


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
    """`resume`: a file that keeps the progress of a run, also if it is interrupted. Raises ResumeError."""
    tally, done = Tally(), 0
    if resume is not None:
        tally, done = _load_progress(resume, start, servers)
    block = seeds if resume is None else 20 * CHUNK * jobs
    while done < seeds:
        until = min(seeds, done + block)
        try:
            for verdict in verdicts(range(start + done, start + until), jobs=jobs, servers=servers):
                tally.add(verdict)
                done += 1
                if verdict.violations:
                    _print(
                        f"seed {verdict.seed}: {verdict.violations[0]}  ({replay_command(verdict.seed, servers)})",
                        progress,
                    )
                if progress and (done % CHUNK == 0 or done == seeds):
                    _show_progress(done, seeds, len(tally.failures))
        finally:
            if resume is not None:
                _save_progress(resume, {"start": start, "servers": servers, "done": done, "tally": vars(tally)})
    if progress:
        sys.stderr.write("\n")
    return tally


def replay_command(seed: int, servers: int | None) -> str:
    return f"nstance-sim replay {seed}" + (f" --servers {servers}" if servers is not None else "")


def _load_progress(path: Path, start: int, servers: int | None) -> tuple[Tally, int]:
    try:
        if not path.exists():
            _save_progress(path, {"start": start, "servers": servers, "done": 0, "tally": vars(Tally())})
        saved = json.loads(path.read_text())
        if (saved["start"], saved["servers"]) != (start, servers):
            raise ResumeError(
                f"{path} belongs to a run from seed {saved['start']} with servers={saved['servers']}, not from {start} with "
                f"servers={servers}: name another file, or remove this one"
            )
        return Tally.load(saved["tally"]), int(saved["done"])
    except OSError as problem:
        raise ResumeError(f"failed to save the progress of the run: {problem}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ResumeError(f"{path} is not a progress file: name another file, or remove this one") from None


def _save_progress(path: Path, progress: dict[str, object]) -> None:
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(progress))
    os.replace(draft, path)


def _print(text: str, progress: bool) -> None:
    print(("\r\x1b[K" if progress else "") + text, flush=True)


def _show_progress(done: int, seeds: int, failures: int) -> None:
    width = 40
    filled = width * done // seeds
    bar = "#" * filled + "." * (width - filled)
    sys.stderr.write(f"\r[{bar}] {done}/{seeds}  {failures} with violations ")
    sys.stderr.flush()
