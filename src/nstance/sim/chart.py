"""Lines over time as an SVG file: no library, opens in every browser."""

from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 960, 420, 60, 40, 40
COLOURS = ("#1f77b4", "#2ca02c", "#ff7f0e", "#d62728", "#9467bd")


def draw(title: str, hours: Sequence[float], lines: Mapping[str, Sequence[float]]) -> str:
    most = max((max(values, default=0.0) for values in lines.values()), default=0.0) or 1.0
    last = hours[-1] if hours and hours[-1] else 1.0
    inner_width, inner_height = WIDTH - LEFT - 20, HEIGHT - TOP - BOTTOM

    def point(hour: float, value: float) -> str:
        return f"{LEFT + inner_width * hour / last:.1f},{TOP + inner_height * (1 - value / most):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{_escaped(title)}</text>',
    ]
    for step in range(5):
        y = TOP + inner_height * step / 4
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - 20}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{most * (1 - step / 4):.0f}</text>')
        x = LEFT + inner_width * step / 4
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 14}" text-anchor="middle">{last * step / 4:.1f} h</text>')
    for number, (name, values) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(point(hour, value) for hour, value in zip(hours, values, strict=True))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(
            f'<text x="{WIDTH - 30 - 110 * (len(lines) - number - 1)}" y="22" text-anchor="end" fill="{colour}">'
        )
        parts.append(f"{_escaped(name)}</text>")
    return "\n".join([*parts, "</svg>", ""])


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
