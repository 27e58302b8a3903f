"""`make bench`: measures all rows, or `python -m bench 1 8 15` some of them (`--keep`: store them in the kept result).

A missed goal is reported and does not fail the run."""

import asyncio
import importlib
import sys
import time
import traceback

import uvloop

from bench import report
from bench.rows import Row

# Subjects of one stage mostly wait and run concurrently; the others need the processor and run alone.
STAGES: tuple[tuple[tuple[str, str], ...], ...] = (
    (("failover", "4 5"), ("silence", "3"), ("idle", "14")),
    (("slow_storage", "16"),),
    (("replacing", "1 2"),),
    (("fallback", "26"),),
    (("scaling", "6"),),
    (("registering", "15"),),
    (("readiness", "21"),),
    (("agent", "13"),),
    (("kubernetes", "12"),),
    (("kube_fleet", "38"),),
    (("cold_start", "10"),),
    (("churn", "24"),),
    (("aws", "31 32 33 34 35"),),
    (("proxmox", "36"),),
    (("gcp", "37"),),
    (("crowd", "7 8 9 11 17"),),
    (("dashboard", "30"),),
)


async def measure_subject(module: str, wanted: set[str], failed: list[str]) -> list[Row]:
    rows: list[Row] = []
    began = time.monotonic()
    try:
        async for row in importlib.import_module(f"bench.{module}").run():
            if not wanted or row.number in wanted:
                rows.append(row)
                report.print_row(row)
    except Exception as problem:  # the other subjects can still be measured
        traceback.print_exc()
        failed.append(f"{module}: {problem!r}")
    report.print_note(f"{module}: {time.monotonic() - began:.0f} s")
    return rows


async def measure(wanted: set[str], failed: list[str]) -> list[Row]:
    rows: list[Row] = []
    for stage in STAGES:
        chosen = [module for module, numbers in stage if not wanted or wanted & set(numbers.split())]
        for found in await asyncio.gather(*(measure_subject(module, wanted, failed) for module in chosen)):
            rows += found
    return sorted(rows, key=lambda row: int(row.number))


def main() -> None:
    wanted = set(sys.argv[1:]) - {"--keep"}
    known = {number for stage in STAGES for _, numbers in stage for number in numbers.split()}
    if wanted - known:
        sys.exit(f"expected numbers among {' '.join(sorted(known, key=int))}, found {' '.join(sorted(wanted - known))}")
    began, before = time.monotonic(), report.load_average()
    failed: list[str] = []
    rows = uvloop.run(measure(wanted, failed))
    report.publish(rows, keep=not wanted or "--keep" in sys.argv, seconds=time.monotonic() - began, load_before=before)
    if failed:
        sys.exit("failed to measure: " + "; ".join(failed))


if __name__ == "__main__":
    main()
