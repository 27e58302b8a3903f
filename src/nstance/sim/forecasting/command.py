"""`nstance-sim run`: prints a forecast as a table and a summary, and draws a chart."""

import argparse
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from nstance.server.config.configuration import NoConfigurationError
from nstance.sim.forecasting import chart
from nstance.sim.forecasting.adapt import adapt
from nstance.sim.forecasting.forecast import Forecast, Options, Point, forecast

ROWS = 20


def run(options: argparse.Namespace) -> int:
    picture: Path = options.svg or Path(f"forecast-{options.scenario}.svg")
    progress = _ProgressLine(options.hours)
    interrupted: list[int] = []

    def interrupt(number: int, _: object) -> None:
        interrupted.append(number)
        raise KeyboardInterrupt

    def show(hours: float) -> None:
        if interrupted:  # Python dropped the exception, as it does in callbacks of weak references
            raise KeyboardInterrupt
        progress.show(hours)

    default = signal.signal(signal.SIGINT, interrupt)
    try:
        document = adapt(
            options.config.read_text(errors="surrogateescape"),
            source=str(options.config),
            agents=options.agents,
            needs_spot=options.scenario == "spot-storm" and not options.all_spot,
        )
        picture.touch()  # fail now rather than after minutes
        settings = Options(scenario=options.scenario, hours=options.hours, boot=options.boot, all_spot=options.all_spot)
        result = forecast(document, settings, show)
    except (OSError, NoConfigurationError) as problem:
        print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if picture.exists() and not picture.stat().st_size:
            picture.unlink()
        print("\ninterrupted: no chart was drawn", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGINT, default)
        progress.clear()
    print("\n".join([*_table(result), "", *_summary(result)]))
    title = f"{options.scenario}: {result.points[0].desired:,} instances over {options.hours:g} h"
    picture.write_text(chart.draw(title, result))
    if options.json is not None:
        options.json.write_text(json.dumps(_document(result)))
    print(f"drawn into {picture}")
    return 0


def _document(forecast: Forecast) -> dict[str, object]:
    """For programs."""
    return {
        "points": [asdict(point) for point in forecast.points],
        "marks": [{"hour": hour, "text": text} for hour, text in forecast.events],
        "summary": _summary(forecast),
    }


class _ProgressLine:
    """Shows the progress on a terminal."""

    def __init__(self, hours: float) -> None:
        self._hours = hours
        self._is_terminal = sys.stderr.isatty()

    def show(self, hours: float) -> None:
        text = "starting the groups" if hours < 0 else f"{hours:.2f} of {self._hours:g} h"
        self._write(f"\r{text:<40}")

    def clear(self) -> None:
        self._write(f"\r{'':<40}\r")

    def _write(self, text: str) -> None:
        if self._is_terminal:
            sys.stderr.write(text)
            sys.stderr.flush()


def _table(forecast: Forecast) -> list[str]:
    heads = ("hour", "desired", "ready", "starting", "leaving", "created", "requests", "price")
    rows = ["{:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>9}".format(*heads)]
    lowest, names = forecast.lowest(), dict(forecast.events)
    shown = {
        id(point): point for point in (*_evenly(forecast), lowest, *(_first_after(forecast, hour) for hour in names))
    }
    for point in sorted(shown.values(), key=lambda each: each.hour):
        notes = [name for hour, name in names.items() if _first_after(forecast, hour) is point]
        notes += ["fewest ready"] if point is lowest and point.ready < point.desired else []
        rows.append(f"{_row(point)}  {', '.join(notes)}".rstrip())
    return rows


def _evenly(forecast: Forecast) -> list[Point]:
    return [_first_after(forecast, forecast.hours * row / ROWS) for row in range(ROWS + 1)]


def _first_after(forecast: Forecast, hour: float) -> Point:
    return next((point for point in forecast.points if point.hour >= hour - 1e-6), forecast.points[-1])


def _row(p: Point) -> str:
    return (
        f"{p.hour:8.2f} {p.desired:8,} {p.ready:8,} {p.starting:8,} {p.leaving:8,} {p.created:8,} {p.requests:10,.0f} "
        f"{f'${p.price:.4f}':>9}"
    )


def _summary(forecast: Forecast) -> list[str]:
    last, lowest = forecast.points[-1], forecast.lowest()
    counts = forecast.counts
    lines = [
        f"{last.created:,} instances were created with {counts.get('calls create', 0):,} create calls, and "
        f"{counts.get('calls delete', 0):,} delete calls were made; the leader changed {counts.get('terms', 0):,} times"
    ]
    if lowest.ready < lowest.desired:
        restored = next((p for p in forecast.points if p.hour > lowest.hour and p.ready >= p.desired), None)
        after = (
            f"complete again {60 * (restored.hour - lowest.hour):.1f} minutes later"
            if restored
            else "not complete since"
        )
        lines.append(f"fewest ready: {lowest.ready:,} of {lowest.desired:,} at hour {lowest.hour:.2f}, {after}")
    month = last.price / forecast.hours * 730
    lines.append(
        f"{last.requests:,.0f} requests to object storage cost about ${last.price:.4f} "
        f"(${month:.2f} a month at this rate)"
    )
    for hours, why in ((forecast.skipped, "are quiet"), (forecast.repeated, "repeat earlier rounds")):
        if hours:
            lines.append(f"{hours:.1f} of {forecast.hours:g} hours {why}: they were counted, not played")
    return lines
