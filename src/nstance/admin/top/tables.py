"""Rows of `top`: groups with a cell for each instance, instances, events. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from nstance.admin.shard import records
from nstance.admin.shard.records import Record
from nstance.admin.top import model
from nstance.admin.top.lines import GAP, Line, fit, widths
from nstance.admin.top.model import STATES, Fleet

WIDE = 110  # from here on there is room for more columns
MARGIN = 2  # of the mark of the selected row
ID_END = 8
Sign = Callable[[str], str]


class Sized(Protocol):
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Table:
    head: str
    rows: Sequence[Sequence[Line]]  # the lines of each row; several only if all rows fit with them


def groups(fleet: Fleet, rows: Sequence[Record], surface: Sized, sign: Sign) -> Table:
    """Every instance is a cell. If there is no room for all of them, each group has one line that shows shares."""
    counts = model.counts(fleet)
    sizes = [f"{each['ready_size']}/{each['size']}" for each in rows]
    shards = ["SHARD", *(each["shard"] for each in rows)] if fleet.several else []
    names = ["GROUP", *(each["group"] for each in rows)]
    first, second, third = widths([shards, names, ["READY", *sizes]], [16, 32 if surface.width >= WIDE else 20, 11])
    notes = [", ".join(note for note in records.group_row(each)["notes"] if note != "static") for each in rows]
    used = MARGIN + 2 + (first + 2 if first else 0) + second + 2 + third + 2
    rest = max(0, surface.width - used)
    longest = max((len(each) for each in notes), default=0)
    for_notes = min(longest, rest // 2)
    for_cells = rest - (for_notes + 2 if for_notes else 0)
    totals = [counts[each["shard"], each["group"]].total() for each in rows]
    heights = [max(1, math.ceil(total / max(1, for_cells))) for total in totals]
    if sum(heights) >= surface.height or not for_cells:
        heights = [1] * len(rows)
    found = []
    for each, size, note, height in zip(rows, sizes, notes, heights, strict=True):
        is_calm = model.is_calm(each)
        states = model.cells(counts[each["shard"], each["group"]], for_cells * height)
        first_line, *further = [states[line * for_cells : (line + 1) * for_cells] for line in range(height)]
        parts = [
            ("  " if is_calm else "! ", "" if is_calm else "warn"),
            (fit(each["shard"], first) + GAP if first else "", "dim"),
            (fit(each["group"], second) + GAP, "" if is_calm else "bold"),
            (f"{size:>{third}}{GAP}", "" if each["ready_size"] >= each["size"] else "warn"),
            *_cells(first_line, sign),
        ]
        if for_notes:
            parts += [(" " * (for_cells - len(first_line)) + GAP, ""), (fit(note, for_notes), "warn")]
        indent = " " * (used - MARGIN)
        found.append([tuple(parts), *(((indent, ""), *_cells(part, sign)) for part in further)])
    titles = [(fit("SHARD", first) + GAP) if first else "", fit("GROUP", second), GAP, f"{'READY':>{third}}", GAP]
    head = "  " + "".join(titles) + fit("INSTANCES", for_cells) + (f"{GAP}NOTES" if for_notes else "")
    return Table(head, found)


def _cells(states: Sequence[str], sign: Sign) -> list[tuple[str, str]]:
    return [(sign(state) * len(list(run)), STATES[state][0]) for state, run in groupby(states)]


def instances(
    fleet: Fleet, rows: Sequence[tuple[str, Record]], surface: Sized, sign: Sign, *, with_group: bool
) -> Table:
    """`rows`: only those that are seen."""
    is_wide = surface.width >= WIDE
    columns: list[tuple[str, int, list[str]]] = [
        ("INSTANCE", 30, [each["id"] for _, each in rows]),
        ("STATE", 14, [f"{sign(state)} {state}" for state, _ in rows]),
        ("AGE", 7, [records.age(fleet.now - each["created"] / 1000) for _, each in rows]),
    ]
    if with_group:
        columns.append(("GROUP", 32 if is_wide else 16, [each["group"] for _, each in rows]))
    if with_group and fleet.several:
        columns.append(("SHARD", 16 if is_wide else 10, [each["shard"] for _, each in rows]))
    if is_wide:
        columns.append(("TYPE", 16, [each.get("instance_type", "") for _, each in rows]))
        columns.append(("ADDRESS", 15, [each.get("ipv4", "") for _, each in rows]))
        columns.append(("REVISION", 12, [each.get("revision", "") for _, each in rows]))
    sizes = widths([[title, *cells] for title, _, cells in columns], [limit for _, limit, _ in columns])
    found = []
    for index, (state, each) in enumerate(rows):
        parts = [
            (fit(cells[index], size) + GAP, STATES[state][0] if title == "STATE" else "")
            for (title, _, cells), size in zip(columns, sizes, strict=True)
        ]
        on_demand = "on-demand " if each.get("on_demand") else ""
        found.append([(*parts, (on_demand + model.note(each), "warn"))])
    titles = [fit(title, size) + GAP for (title, _, _), size in zip(columns, sizes, strict=True)]
    return Table("".join(titles) + "NOTES", found)


def event(each: Record, *, several: bool, is_wide: bool, with_group: bool = True) -> Line:
    """On a narrow screen the end of the instance's ID: every command takes it too."""
    where = "/".join(filter(None, (each["shard"] if several else "", each["group"] if with_group else "")))
    id = each["instance_id"]
    shown = id if is_wide else f"…{id[-ID_END:]}"
    instance = f" ({shown})" if id and id not in each["message"] else ""
    message = each["message"].partition("\n")[0]  # console output follows
    return (
        (f"{each['time'][11:19]}Z{GAP}", "dim"),
        (f"{each['reason']:<16}{GAP}", "warn" if each.get("trouble") else "good"),
        (f"{where}: " * bool(where) + message + instance, ""),
    )
