"""Draws a forecast as an SVG file, without a library: panels with a common time axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from nstance.sim.forecasting.forecast import Forecast

WIDTH, LEFT, RIGHT, TOP, GAP, BOTTOM = 960, 70, 24, 64, 58, 44
TALL, LOW = 200, 100  # panels
CLOSE_UP_SHARE = 0.25  # of the forecast: events within less are shown again, wider
GREY = "#888"


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    values: Sequence[float]
    color: str  # from a palette for color-blind readers
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    name: str
    lines: list[Line]
    span: tuple[float, float]  # hours
    height: int = LOW


def draw(title: str, forecast: Forecast) -> str:
    points = forecast.points
    hours = [p.hour for p in points]
    span = (0.0, forecast.hours)
    instances = [
        Line("leaving", [p.leaving for p in points], "#d55e00"),
        Line("starting", [p.starting for p in points], "#e69f00"),
        Line("ready", [p.ready for p in points], "#0072b2"),
        Line("desired", [p.desired for p in points], "#333", dashed=True),
    ]
    created = [Line("", [p.created for p in points], "#009e73")]
    each_hour = [Line("", _rates(hours, [p.requests for p in points], forecast.hours), "#cc79a7")]
    last = points[-1]
    panels = [
        Panel("instances", instances, span, TALL),
        Panel(f"replacements: {last.created:,} created", created, span),
        Panel(
            f"requests to object storage per hour: {last.requests:,.0f} in total, ${last.price:.4f}", each_hour, span
        ),
    ]
    close_up = _find_close_up(forecast)
    if close_up is not None:
        panels.insert(1, Panel("instances, close-up", instances, close_up, TALL))
    height = TOP + sum(panel.height + GAP for panel in panels) - GAP + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="26" font-size="16">{escape(title)}</text>',
    ]
    top = TOP
    for number, panel in enumerate(panels):
        parts += _panel(panel, hours, top)
        parts += _marks(forecast, panel, top, named=number == 0)
        top += panel.height + GAP
    return "\n".join([*parts, "</svg>", ""])


def _find_close_up(forecast: Forecast) -> tuple[float, float] | None:
    """From just before the first event until just after its end, if that is a small part of the forecast."""
    if not forecast.events:
        return None
    begin = forecast.events[0][0]
    quiet = [p for p in forecast.points if p.hour > begin and p.starting == p.leaving == 0 and p.ready == p.desired]
    # Until it was quiet for a while, or until the next event.
    ends = (
        p.hour
        for p in quiet
        if all(q.starting == q.leaving == 0 for q in forecast.points if p.hour <= q.hour <= p.hour + 0.1)
    )
    until = min(next(ends, forecast.hours), *(hour for hour, _ in forecast.events[1:]), forecast.hours)
    margin = 0.1 * (until - begin) + 0.02
    span = max(0.0, begin - margin), min(forecast.hours, until + margin)
    moved = any(
        p.starting or p.leaving or p.ready != p.desired for p in forecast.points if span[0] <= p.hour <= span[1]
    )
    return span if moved and span[1] - span[0] < CLOSE_UP_SHARE * forecast.hours else None


def _panel(panel: Panel, hours: Sequence[float], top: int) -> list[str]:
    first, last = panel.span
    height, bottom = panel.height, top + panel.height
    after = [hour > first for hour in hours]  # with the last point before, so that no line begins late
    shown = [at for at, hour in enumerate(hours) if hour <= last and (after[at] or after[min(at + 1, len(after) - 1)])]
    largest = max((line.values[at] for line in panel.lines for at in shown), default=0.0)
    step = nice_step(largest / (4 if height > LOW else 2))
    most = step * max(1, math.ceil(largest / step))
    parts = [f'<text x="{LEFT}" y="{top - 10}" font-weight="bold">{escape(panel.name)}</text>']
    x = WIDTH - RIGHT
    for line in (line for line in panel.lines if line.name):
        parts.append(f'<text x="{x}" y="{top - 10}" text-anchor="end" fill="{line.color}">{escape(line.name)}</text>')
        x -= 70
    for tick in range(round(most / step) + 1):
        y = bottom - height * tick * step / most
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick * step:,g}</text>')
    hour_step = nice_step((last - first) / 12, of_hours=True)
    for tick in range(math.ceil(first / hour_step - 1e-9), math.floor(last / hour_step + 1e-9) + 1):
        x_tick = _x(tick * hour_step, panel.span)
        parts.append(f'<line x1="{x_tick:.1f}" y1="{bottom}" x2="{x_tick:.1f}" y2="{bottom + 4}" stroke="{GREY}"/>')
        name = f"{round(tick * hour_step, 4):g} h"
        parts.append(f'<text x="{x_tick:.1f}" y="{bottom + 18}" text-anchor="middle">{name}</text>')
    for line in panel.lines:
        path = " ".join(
            f"{_x(max(first, hours[at]), panel.span):.1f},{bottom - height * line.values[at] / most:.1f}"
            for at in shown
        )
        dashes = ' stroke-dasharray="6 4"' if line.dashed else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{line.color}" stroke-width="1.6" '
            f'stroke-linejoin="round"{dashes}/>'
        )
    return parts


def _marks(forecast: Forecast, panel: Panel, top: int, *, named: bool) -> list[str]:
    """Lines at the events; repeated events are named once."""
    parts: list[str] = []
    seen: set[str] = set()
    for hour, name in forecast.events:
        if not panel.span[0] <= hour <= panel.span[1]:
            continue
        x, bottom = _x(hour, panel.span), top + panel.height
        parts.append(
            f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="{GREY}" stroke-dasharray="2 3"/>'
        )
        if named and name not in seen:
            right = x > WIDTH * 0.7
            parts.append(
                f'<text x="{x + (-6 if right else 6):.1f}" y="{top + panel.height // 2 + 16 * len(seen)}" fill="#555" '
                f'text-anchor="{"end" if right else "start"}">{escape(name)}</text>'
            )
            seen.add(name)
    return parts


def _x(hour: float, span: tuple[float, float]) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (hour - span[0]) / (span[1] - span[0])


def _rates(hours: Sequence[float], counted: Sequence[float], last: float) -> list[float]:
    """Totals as a rate per hour, over an interval that is long enough to be smooth."""
    width = last / 120
    rates, behind = [], 0
    for at, hour in enumerate(hours):
        while hours[behind + 1 if behind < at else behind] < hour - width:
            behind += 1
        passed = hour - hours[behind]
        rates.append((counted[at] - counted[behind]) / passed if passed > 0 else 0.0)
    full = next((at for at, hour in enumerate(hours) if hour >= width), 0)
    return [rates[full]] * full + rates[full:]


def nice_step(about: float, *, of_hours: bool = False) -> float:
    """The next larger one of 1, 2, 5, 10, 20 …; for hours: common parts and multiples of an hour."""
    if of_hours:
        return next((step for step in (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 6, 12, 24) if step >= about), 24)
    if about <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(about))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= about)
