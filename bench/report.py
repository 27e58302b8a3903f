"""Prints the table, compares it with the kept result, and stores JSON, chart and documentation page."""

import json
import os
import platform
import sys
from dataclasses import asdict, fields
from html import escape
from pathlib import Path
from typing import Any

from bench.rows import Row

KEPT = Path(__file__).parent / "results" / "last.json"
CHART = KEPT.with_suffix(".svg")
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- table: written by make bench -->\n", "<!-- end of the table -->\n"
NOTABLE_FACTOR = 1.25  # a smaller change is noise

GOOD, BAD, INK, PAPER = "#2e7d5b", "#b3412e", "#222", "#fff"
LINE, LEFT, WIDTH, SCALE = 22, 470, 1040, 90  # of the chart; SCALE: pixels per factor of two
MAX_DOUBLINGS = 4.0  # length of a bar


def print_row(row: Row) -> None:
    print(_line(row, ""), flush=True)


def print_note(text: str) -> None:
    print(f"  ({text})", file=sys.stderr, flush=True)


def load_average() -> float:
    return round(os.getloadavg()[0], 2)


def publish(rows: list[Row], *, keep: bool, seconds: float, load_before: float) -> None:
    """Print all rows; `keep` replaces the kept rows with the same numbers."""
    kept = _kept()
    print("\n" + "\n".join(_table(rows, {_name(row): row.value for row in kept})))
    missed = [row for row in rows if not row.met]
    if missed:
        print(f"\n{len(missed)} of {len(rows)} goals MISSED: " + "; ".join(f"{r.number} {r.what}" for r in missed))
    else:
        print(f"\nall {len(rows)} goals met")
    print(f"{seconds:.0f} s in total, load average {load_before} before and {load_average()} after")
    if keep and rows:
        measured = {row.number for row in rows}
        rows = sorted([*rows, *(row for row in kept if row.number not in measured)], key=lambda row: int(row.number))
        runs = _runs(measured, seconds, load_before)
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(_document(rows, runs), indent=1, ensure_ascii=False) + "\n")
        CHART.write_text(draw_chart(rows))
        _write_page(rows, runs)
        print(f"kept in {KEPT.parent.name}/{KEPT.name}, {CHART.name} and docs/{PAGE.name}")


def _document(rows: list[Row], runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "machine": {
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
        },
        "runs": runs,
        "rows": [{**asdict(row), "ratio": round(row.ratio, 2), "met": row.met} for row in rows],
    }


def _runs(measured: set[str], seconds: float, load_before: float) -> list[dict[str, Any]]:
    """The rows of each run and the load of the machine: rows of different runs are not comparable."""
    older = json.loads(KEPT.read_text())["runs"] if KEPT.exists() else []
    remaining = [{**run, "rows": [number for number in run["rows"] if number not in measured]} for run in older]
    load = {"load_average_before": load_before, "load_average_after": load_average()}
    now = {"rows": sorted(measured, key=int), "seconds": round(seconds), **load}
    return [now, *(run for run in remaining if run["rows"])]


def _write_page(rows: list[Row], runs: list[dict[str, Any]]) -> None:
    lines = [
        f"- Rows {', '.join(run['rows'])}: one run of {run['seconds']} s, load average "
        f"{run['load_average_before']} before and {run['load_average_after']} after."
        for run in runs
    ]
    lines += ["", "| # | what | value | goal | ratio | | detail |", "|---|---|---|---|---|---|---|"]
    lines += [
        f"| {row.number} | {row.what} | {_short(row.value)} {row.unit} | {_goal(row)} | {row.ratio:.1f} "
        f"| {'' if row.met else '**missed**'} | {row.detail} |"
        for row in rows
    ]
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}."
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{machine}\n\n" + "\n".join(lines) + f"\n{END}{after}")


def _kept() -> list[Row]:
    try:
        rows = json.loads(KEPT.read_text())["rows"]
    except FileNotFoundError:
        return []
    names = {field.name for field in fields(Row)}
    return [Row(**{name: value for name, value in row.items() if name in names}) for row in rows]


def _name(row: Row) -> str:
    return f"{row.number} {row.what}"


def _table(rows: list[Row], kept: dict[str, float]) -> list[str]:
    head = f"{'#':>2}  {'what':<66} {'value':>12} {'goal':>13} {'ratio':>6}  {'met':<6} {'before':<14} detail"
    return [head, "-" * len(head), *(_line(row, _change(row, kept)) for row in rows)]


def _line(row: Row, change: str) -> str:
    goal = _goal(row)
    value = f"{_short(row.value)} {row.unit}"
    met = "yes" if row.met else "MISSED"
    return (
        f"{row.number:>2}  {row.what:<66} {value:>12} {goal:>13} {row.ratio:>6.1f}  {met:<6} {change:<14} {row.detail}"
    )


def _goal(row: Row) -> str:
    return f"{'≥' if row.at_least else '≤'} {_short(row.goal)} {row.unit}"


def _change(row: Row, kept: dict[str, float]) -> str:
    before = kept.get(_name(row))
    if before is None:
        return "new"
    gain = row.value / before if row.at_least and before else before / row.value if row.value else 1.0
    if 1 / NOTABLE_FACTOR <= gain <= NOTABLE_FACTOR:
        return "same"
    return f"{gain:.1f}× better" if gain > 1 else f"{1 / gain:.1f}× worse" if gain else "worse"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def draw_chart(rows: list[Row]) -> str:
    """A bar per row that shows how much better than its goal it is, with a grid line per factor of two."""
    middle = LEFT + SCALE
    height = LINE * (len(rows) + 2) + 10
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
    ]
    for doublings in range(-1, int(MAX_DOUBLINGS) + 1):
        place, label = middle + SCALE * doublings, "goal" if not doublings else f"{2.0**doublings:g}×"
        shapes.append(
            f'<line x1="{place}" y1="{LINE}" x2="{place}" y2="{height - 8}" stroke="#{"888" if not doublings else "ddd"}"/>'
        )
        shapes.append(f'<text x="{place}" y="{LINE - 6}" text-anchor="middle" fill="{INK}">{label}</text>')
    for number, row in enumerate(rows):
        y = LINE * (number + 1) + 4
        reach = SCALE * max(-1.0, min(MAX_DOUBLINGS, _doublings(row.ratio)))
        x, width = (middle, reach) if reach >= 0 else (middle + reach, -reach)
        shapes.append(f'<text x="8" y="{y + 13}" fill="{INK}">{row.number}  {escape(row.what)}</text>')
        shapes.append(
            f'<rect x="{x:.1f}" y="{y}" width="{max(width, 2):.1f}" height="{LINE - 6}" fill="{GOOD if row.met else BAD}"/>'
        )
        text = f"{_short(row.value)} {row.unit}"
        shapes.append(f'<text x="{max(x + width, middle) + 6:.1f}" y="{y + 13}" fill="{INK}">{escape(text)}</text>')
    return "\n".join([*shapes, "</svg>", ""])


def _doublings(ratio: float) -> float:
    if ratio == float("inf"):
        return MAX_DOUBLINGS
    doublings = 0.0
    while ratio >= 2 and doublings < MAX_DOUBLINGS:
        ratio, doublings = ratio / 2, doublings + 1
    while 0 < ratio < 1 and doublings > -2:
        ratio, doublings = ratio * 2, doublings - 1
    return doublings + (ratio - 1 if ratio >= 1 else 0)
