"""`nstance-sim run`: a forecast as a table, a summary and a picture."""

import argparse
import sys
from pathlib import Path

from nstance.server.config.configuration import NoConfigurationError
from nstance.sim.forecasting import chart
from nstance.sim.forecasting import forecast as forecasts
from nstance.sim.forecasting.forecast import Forecast, Point

ROWS = 20


def run(options: argparse.Namespace) -> int:
    picture: Path = options.svg or Path(f"forecast-{options.scenario}.svg")
    try:
        text = options.config.read_text(errors="surrogateescape")
        document = forecasts.adapt(
            text,
            source=str(options.config),
            agents=options.agents,
            needs_spot=options.scenario == "spot-storm" and not options.all_spot,
        )
    except (OSError, NoConfigurationError) as problem:
        print(problem, file=sys.stderr)
        return 2
    line = _Line(options.hours) if sys.stderr.isatty() else None
    try:
        picture.touch()  # better told now than after minutes
        told = forecasts.forecast(
            document,
            scenario=options.scenario,
            hours=options.hours,
            boot=options.boot,
            all_spot=options.all_spot,
            progress=line.show if line else lambda hours: None,
        )
    except OSError as problem:
        print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if not picture.stat().st_size:
            picture.unlink()
        print("\ninterrupted: nothing was drawn", file=sys.stderr)
        return 130
    finally:
        if line:
            line.clear()
    print("\n".join(_table(told)))
    print()
    print("\n".join(_summary(told)))
    title = f"{options.scenario}: {told.points[0].wished:,} instances over {options.hours:g} h"
    picture.write_text(chart.draw(title, told))
    print(f"drawn into {picture}")
    return 0


class _Line:
    """How far it has come, on a terminal."""

    def __init__(self, hours: float) -> None:
        self._hours = hours

    def show(self, hours: float) -> None:
        said = "the groups come up" if hours < 0 else f"{hours:.2f} of {self._hours:g} h"
        sys.stderr.write(f"\r{said:<40}")
        sys.stderr.flush()

    def clear(self) -> None:
        sys.stderr.write(f"\r{'':<40}\r")
        sys.stderr.flush()


def _table(told: Forecast) -> list[str]:
    heads = ("hour", "wished", "ready", "coming", "leaving", "made", "requests", "price")
    rows = ["{:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>9}".format(*heads)]
    lowest, names = told.lowest(), dict(told.happenings)
    shown = {id(point): point for point in (*_evenly(told), lowest, *(_first_after(told, hour) for hour in names))}
    for point in sorted(shown.values(), key=lambda each: each.hour):
        notes = [name for hour, name in names.items() if _first_after(told, hour) is point]
        notes += ["fewest ready"] if point is lowest and point.ready < point.wished else []
        rows.append(f"{_row(point)}  {', '.join(notes)}".rstrip())
    return rows


def _evenly(told: Forecast) -> list[Point]:
    return [_first_after(told, told.hours * row / ROWS) for row in range(ROWS + 1)]


def _first_after(told: Forecast, hour: float) -> Point:
    return next((point for point in told.points if point.hour >= hour - 1e-6), told.points[-1])


def _row(p: Point) -> str:
    return (
        f"{p.hour:8.2f} {p.wished:8,} {p.ready:8,} {p.coming:8,} {p.leaving:8,} {p.made:8,} {p.requests:10,.0f} "
        f"{f'${p.price:.4f}':>9}"
    )


def _summary(told: Forecast) -> list[str]:
    last, lowest = told.points[-1], told.lowest()
    counts = told.counts
    lines = [
        f"{last.made:,} instances were made and {counts.get('calls delete', 0):,} deletions asked for, with "
        f"{counts.get('calls create', 0):,} calls to create; the leader changed {counts.get('terms', 0):,} times"
    ]
    if lowest.ready < lowest.wished:
        whole = next((p for p in told.points if p.hour > lowest.hour and p.ready >= p.wished), None)
        after = f"whole again {60 * (whole.hour - lowest.hour):.1f} minutes later" if whole else "not whole again since"
        lines.append(f"fewest ready: {lowest.ready:,} of {lowest.wished:,} at hour {lowest.hour:.2f}, {after}")
    month = last.price / told.hours * 730
    lines.append(
        f"{last.requests:,.0f} requests to object storage cost about ${last.price:.4f} "
        f"(${month:.2f} a month, if every month were like this)"
    )
    if told.left_out:
        lines.append(f"{told.left_out:.1f} of {told.hours:g} hours were quiet: their requests were counted, not made")
    if told.repeated:
        lines.append(
            f"{told.repeated:.1f} of {told.hours:g} hours repeat the rounds before them: all of it was counted, not made"
        )
    return lines
