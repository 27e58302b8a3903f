"""Draws a page of `top`: from the fleet, what the person looks at and a size to lines. Pure."""

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nstance.admin.shard import alarms, costs, records
from nstance.admin.shard.records import Record
from nstance.admin.top import details, model, tables
from nstance.admin.top.lines import GAP, Line, between, cropped, line
from nstance.admin.top.model import STATES, Fleet
from nstance.admin.top.state import TABS, Page, Row, Shown, State, current
from nstance.model.counts import count

MIN_WIDTH, MIN_HEIGHT = 40, 10
MAX_SHARD_LINES = 4


@dataclass(frozen=True, slots=True)
class Drawing:
    lines: Sequence[Line]
    shown: Shown


@dataclass(frozen=True, slots=True)
class Surface:
    width: int
    height: int
    is_unicode: bool = True

    def sign(self, state: str) -> str:
        return STATES[state][1 if self.is_unicode else 2]


def draw(fleet: Fleet, state: State, surface: Surface) -> Drawing:
    """Exactly as many lines as the surface is high, none wider than it."""
    width, height = surface.width, surface.height
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        lines = [line(f"too small: {width}x{height}, {MIN_WIDTH}x{MIN_HEIGHT} needed"), *[line()] * height]
        return Drawing([cropped(each, width) for each in lines[:height]], Shown())
    top = _head(fleet, state, surface)
    left = height - len(top) - 1
    body, shown = _body(fleet, state, replace(surface, height=left))
    lines = [*top, *body[:left], *[line()] * max(0, left - len(body)), _foot(state, surface)]
    return Drawing([cropped(each, width) for each in lines], shown)


# ---- the head: who leads, how many are in which state, what needs a person


def _head(fleet: Fleet, state: State, surface: Surface) -> list[Line]:
    tabs: list[tuple[str, str]] = [("nstance top", "bold"), (GAP, "")]
    chosen = state.before[0].page if state.before else state.place.page
    for key, page in TABS.items():
        tabs += [(f" {key} {page.value} ", "reverse" if page is chosen else "dim"), (" ", "")]
    clock = datetime.datetime.fromtimestamp(fleet.now, datetime.UTC).strftime("%H:%M:%SZ")
    lines = [between(tuple(tabs), ((clock, "dim"),), surface.width)]
    lines += [_shard(each) for each in fleet.shards[:MAX_SHARD_LINES]]
    if len(fleet.shards) > MAX_SHARD_LINES:
        rest = fleet.shards[MAX_SHARD_LINES:]
        silent = sum(not each["reachable"] for each in rest)
        lines.append(
            line((f"and {len(rest)} more shards, {silent} of them do not answer", "warn" if silent else "dim"))
        )
    lines.append(_totals(fleet, surface))
    shown = max(1, surface.height // 8)
    for alarm in fleet.alarms[:shown]:
        where = "/".join(filter(None, (alarm["shard"] if fleet.several else None, alarm["group"])))
        lines.append(line(("! ", alarm["level"]), (f"{where}: " * bool(where) + alarm["message"], alarm["level"])))
    if len(fleet.alarms) > shown:
        lines.append(line((f"  and {len(fleet.alarms) - shown} more alarms", "warn")))
    return [*lines, line()]


def _shard(shard: Record) -> Line:
    name = (shard["shard"], "bold")
    if shard["error"] == alarms.CONNECTING:
        return line(name, GAP, ("connecting", "dim"))
    if not shard["reachable"]:
        return line(name, GAP, (f"does not answer: {shard['error']}", "bad"))
    plane = shard["control_plane"]
    if plane is None:
        return line(name, GAP, ("connected", "dim"))
    leading = records.age(plane["leading_ms"] / 1000)
    standbys = ", ".join(f"{each['server']} {each['answered_ms'] / 1000:.1f}s ago" for each in plane["standbys"])
    return line(
        name,
        f"{GAP}leader {plane['leader']}",
        (f" (epoch {plane['epoch']}, for {leading})", "dim"),
        (f"{GAP}standby {standbys}" if standbys else f"{GAP}no standby", "dim" if standbys else "warn"),
    )


def _totals(fleet: Fleet, surface: Surface) -> Line:
    """Also the legend of the signs."""
    total: Counter[str] = sum(model.counts(fleet).values(), Counter())
    parts: list[tuple[str, str]] = [(f"{count(total.total(), 'instance')} in {count(len(fleet.groups), 'group')}", "")]
    present = [state for state in reversed(STATES) if total[state]]
    parts += [(f"{GAP}{surface.sign(state)} {total[state]} {state}", STATES[state][0]) for state in present]
    if cost := costs.total(group["cost"] for group in fleet.groups):
        parts.append((f"{GAP}{cost}", "dim"))
    return tuple(parts)


# ---- the body


def _body(fleet: Fleet, state: State, surface: Surface) -> tuple[list[Line], Shown]:
    place = state.place
    match place.page:
        case Page.GROUPS:
            rows = model.group_rows(fleet, state.filter, state.sort, is_reversed=place.is_reversed)
            keys: list[Row] = [(each["shard"], each["group"]) for each in rows]
            return _table(tables.groups(fleet, rows, surface, surface.sign), keys, fleet, state, surface)
        case Page.INSTANCES:
            return _instances(fleet, state, surface, None)
        case Page.GROUP:
            return _group(fleet, state, surface)
        case Page.EVENTS:
            found, is_wide = model.event_rows(fleet, state.filter), surface.width >= tables.WIDE
            lines = [tables.event(each, several=fleet.several, is_wide=is_wide) for each in reversed(found)]
            return _scrolled(lines or [line((_nothing(fleet, state, "events"), "dim"))], state, surface)
        case Page.INSTANCE:
            return _scrolled(details.instance(fleet, place.subject, surface.sign), state, surface)
        case _:
            return _scrolled(details.help(surface.sign), state, surface)


def _group(fleet: Fleet, state: State, surface: Surface) -> tuple[list[Line], Shown]:
    shard, name = state.place.subject
    facts = details.group(fleet, shard, name)[: surface.height // 2]
    newest = model.event_rows(fleet, "", (shard, name))[-min(5, max(1, surface.height // 5)) :]
    is_wide = surface.width >= tables.WIDE
    events = [tables.event(each, several=False, is_wide=is_wide, with_group=False) for each in newest]
    room = surface.height - len(facts) - len(events) - bool(events) * 2
    body, shown = _instances(fleet, state, replace(surface, height=room), (shard, name))
    lines = [*facts, *body[:room], *[line()] * max(0, room - len(body))]
    return [*lines, *([line(), line(("latest events", "bold")), *events] if events else [])], shown


def _instances(fleet: Fleet, state: State, surface: Surface, group: model.Key | None) -> tuple[list[Line], Shown]:
    place = state.place
    rows = model.instance_rows(fleet, state.filter, state.sort, is_reversed=place.is_reversed, group=group)
    keys: list[Row] = [(each["shard"], each["id"]) for _, each in rows]
    first, last = _window(keys, current(place, keys), surface.height - 1)
    # Only what is seen is drawn: there may be thousands.
    table = tables.instances(fleet, rows[first:last], surface, surface.sign, with_group=group is None)
    return _table(table, keys, fleet, state, surface)


def _table(
    table: tables.Table, keys: Sequence[Row], fleet: Fleet, state: State, surface: Surface
) -> tuple[list[Line], Shown]:
    """`table.rows` are those of all keys, or of the window only."""
    height = surface.height - 1
    shown = Shown(rows=keys, height=height)
    if not keys:
        return [line((_nothing(fleet, state, state.place.page.value), "dim"))], shown
    chosen = current(state.place, keys)
    first, last = _window(keys, chosen, height)
    rows = table.rows[first:last] if len(table.rows) == len(keys) else table.rows
    lines = [line((f"  {table.head}", "bold"))]
    for key, (row, *further) in zip(keys[first:last], rows, strict=True):
        if key == chosen:
            text = "".join(part for part, _ in row)
            lines.append(line((f"> {text}", "reverse")))
        else:
            lines.append(line("  ", *row))
        lines += [line("  ", *each) for each in further]
    return lines, shown


def _window(keys: Sequence[Row], chosen: Row | None, height: int) -> tuple[int, int]:
    """The rows that are seen: the chosen one in the middle where possible."""
    height = max(1, height)
    at = keys.index(chosen) if chosen is not None else 0
    first = max(0, min(at - height // 2, len(keys) - height))
    return first, min(len(keys), first + height)


def _scrolled(lines: Sequence[Line], state: State, surface: Surface) -> tuple[list[Line], Shown]:
    first = min(state.place.scroll, max(0, len(lines) - surface.height))
    return list(lines[first : first + surface.height]), Shown(height=surface.height, lines=len(lines))


def _nothing(fleet: Fleet, state: State, what: str) -> str:
    if state.filter:
        return f"nothing matches {state.filter!r}; / changes the filter"
    if not any(each["reachable"] for each in fleet.shards):
        return "waiting for an answer"
    return f"no {'instances' if what == 'group' else what} yet"


# ---- the foot


def _foot(state: State, surface: Surface) -> Line:
    if state.is_typing:
        return line(
            ("filter: ", "bold"), state.filter, ("_", "reverse"), (f"{GAP}Enter keeps it, Esc shows all", "dim")
        )
    keys = [("q", "quit"), ("?", "help"), ("/", "filter")]
    if state.before:
        keys.insert(1, ("Esc", "back"))
    if state.sort:
        arrow = " reversed" if state.place.is_reversed else ""
        keys += [("Enter", "open"), ("s", f"sort ({state.sort}{arrow})"), ("r", "reverse")]
    parts = [part for key, text in keys for part in ((key, "bold"), (f" {text}{GAP}", "dim"))]
    left = (*((f"filter: {state.filter}{GAP}", "warn"),) * bool(state.filter), *parts)
    return cropped(left, surface.width)
