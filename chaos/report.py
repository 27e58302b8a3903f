"""The report of a run: a table of faults and a list of violations."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from chaos import hostile
from chaos.faults import Strike
from chaos.run import Result

AFTERMATH_SECONDS = 5.0  # after its repair, in which a fault still has an effect


def rows(result: Result) -> Iterator[dict[str, Any]]:
    """One for each requested fault."""
    for name in result.plan.faults:
        strikes = [strike for strike in result.strikes if strike.name == name]
        proof = sum((strike.proof for strike in strikes), Counter[str]())
        problems = [problem for strike in strikes for problem in strike.problems]
        yield {
            "fault": name,
            "times": len(strikes),
            "seconds": round(sum(strike.ended - strike.began for strike in strikes), 1),
            "leaderless": round(sum(_leaderless(result, strike) for strike in strikes), 1),
            "fewest_connected": min(
                (_fewest_connected(result, strike) for strike in strikes), default=result.plan.agents
            ),
            "proof": {what: count for what, count in sorted(proof.items()) if count},
            "verdict": _verdict(len(strikes), bool(proof.total() - proof[hostile.UNANSWERED]), bool(problems)),
        }


def _verdict(times: int, has_effect: bool, has_problems: bool) -> str:
    if not times:
        return "not tried"
    if has_problems:
        return "WRONG"
    return "held" if has_effect else "no proof"


def _leaderless(result: Result, strike: Strike) -> float:
    samples = [s for s in result.watched.samples if strike.began <= s.at <= strike.ended + AFTERMATH_SECONDS]
    return sum(now.at - before.at for before, now in itertools.pairwise(samples) if now.leaderless)


def _fewest_connected(result: Result, strike: Strike) -> int:
    samples = [s for s in result.watched.samples if strike.began <= s.at <= strike.ended + AFTERMATH_SECONDS]
    return min((s.connected for s in samples if s.leader), default=0)


def table(result: Result) -> str:
    head = ("fault", "times", "lasted", "leaderless", "connected ≥", "proof of effect", "verdict")
    body = [
        (
            row["fault"],
            str(row["times"]),
            f"{row['seconds']:.0f} s",
            f"{row['leaderless']:.1f} s",
            str(row["fewest_connected"]),
            ", ".join(f"{count} {what}" for what, count in row["proof"].items()) or "-",
            row["verdict"],
        )
        for row in rows(result)
    ]
    widths = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]

    def line(cells: tuple[str, ...]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    return "\n".join([line(head), line(tuple("-" * width for width in widths)), *(line(cells) for cells in body)])


def summary(result: Result) -> str:
    plan, verdict = result.plan, result.verdict
    causes = ", ".join(f"{count} {cause}" for cause, count in sorted(verdict.causes.items())) or "none"
    rest = f"{verdict.settled:.0f} s" if verdict.settled is not None else "NEVER"
    lines = [
        f"{plan.agents} agents were connected after {result.booted:.0f} s; {len(result.strikes)} faults in"
        f" {plan.seconds:.0f} s; at rest {rest} after the last repair; {result.seconds:.0f} s in total",
        f"{verdict.epochs} epochs, {verdict.slots} journal slots, {verdict.made} VMs created, instances that left: {causes}",
        f"{verdict.certificates} workload certificates; a server's memory was at most {verdict.most_kilobytes >> 10} MB",
    ]
    if verdict.problems:
        lines += [f"{len(verdict.problems)} VIOLATIONS with seed {plan.seed}:", *(f"  {p}" for p in verdict.problems)]
    else:
        lines.append("no violation")
    return "\n".join(lines)


def as_json(result: Result) -> str:
    plan, verdict = result.plan, result.verdict
    fields = {
        "agents": plan.agents,
        "seconds": plan.seconds,
        "seed": plan.seed,
        "booted": result.booted,
        "settled": verdict.settled,
        "took": result.seconds,
        "epochs": verdict.epochs,
        "slots": verdict.slots,
        "made": verdict.made,
        "left": dict(verdict.causes),
        "certificates": verdict.certificates,
        "most_kilobytes": verdict.most_kilobytes,
        "faults": list(rows(result)),
        "problems": verdict.problems,
    }
    return json.dumps(fields, indent=2)
