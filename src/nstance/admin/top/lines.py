"""Lines of styled text that fit a width, counted in cells of the terminal: some characters take two."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from nstance.admin import output

Line = tuple[tuple[str, str], ...]  # texts with their styles

GAP = "  "


def fit(text: str, width: int) -> str:
    """Exactly so wide; what is cut off is marked. Control characters are escaped."""
    safe = output.escape(text)
    if width <= 0:
        return ""
    if cell_len(safe) <= width:
        return set_cell_size(safe, width)
    return set_cell_size(safe, width - 1) + "…"


def line(*parts: tuple[str, str] | str) -> Line:
    return tuple((part, "") if isinstance(part, str) else part for part in parts)


def cropped(parts: Line, width: int) -> Line:
    """At most so wide."""
    found, left = [], width
    for text, style in parts:
        safe = output.escape(text)
        size = cell_len(safe)
        if size > left:
            safe = fit(safe, left)
        if safe:
            found.append((safe, style))
        left -= min(size, left)
    return tuple(found)


def between(left: Line, right: Line, width: int) -> Line:
    """The right part at the right edge, if there is room for it."""
    used = sum(cell_len(text) for text, _ in (*left, *right))
    return (*left, (" " * (width - used), ""), *right) if used < width else cropped(left, width)


def widths(columns: Sequence[Sequence[str]], limits: Sequence[int]) -> list[int]:
    """The widest cell of each column, up to its limit."""
    return [
        min(limit, max((cell_len(cell) for cell in column), default=0))
        for column, limit in zip(columns, limits, strict=True)
    ]
