"""What a person looks at in `top`, and how keys change it. Pure.

The selected row is remembered by what it is, not by where it is: rows move while a person looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

MAX_FILTER = 64


class Page(Enum):
    GROUPS = "groups"
    INSTANCES = "instances"
    EVENTS = "events"
    GROUP = "group"
    INSTANCE = "instance"
    HELP = "help"


SORTS = {  # the columns by which a page can be sorted; the first is the default
    Page.GROUPS: ("name", "attention", "size", "missing"),
    Page.INSTANCES: ("attention", "age", "group", "state", "id"),
    Page.GROUP: ("attention", "age", "state", "id"),
}
TABS = {"1": Page.GROUPS, "2": Page.INSTANCES, "3": Page.EVENTS}

Row = tuple[str, ...]  # what identifies a row: (shard, group) or (shard, instance)


@dataclass(frozen=True, slots=True)
class Place:
    """A page, and where on it."""

    page: Page
    subject: Row = ()  # the group or instance that the page is about
    selected: Row | None = None
    scroll: int = 0  # of pages without rows
    sort: int = 0
    is_reversed: bool = False


@dataclass(frozen=True, slots=True)
class State:
    place: Place = Place(Page.GROUPS)
    before: tuple[Place, ...] = ()  # where Esc leads back to
    filter: str = ""
    is_typing: bool = False  # a filter
    is_done: bool = False

    @property
    def sort(self) -> str:
        columns = SORTS.get(self.place.page, ("",))
        return columns[self.place.sort % len(columns)]


@dataclass(frozen=True, slots=True)
class Shown:
    """What the last drawing had: keys refer to it."""

    rows: Sequence[Row] = ()  # all of the page, in their order
    height: int = 1  # rows that fit
    lines: int = 0  # of a page without rows


def press(state: State, key: str, shown: Shown) -> State:
    """`key`: a character, or a name such as `up`, `enter` or `esc`."""
    if state.is_typing:
        return _type(state, key)
    place = state.place
    if key == "q":
        return replace(state, is_done=True)
    if key in ("esc", "left", "backspace", "h"):
        return _back(state)
    if key in ("enter", "right", "l"):
        return _open(state, shown)
    if key == "/":
        return replace(state, is_typing=True)
    if key == "?":
        return state if place.page is Page.HELP else _go(state, Place(Page.HELP))
    if key in TABS:
        return replace(state, place=Place(TABS[key]), before=())
    if key == "tab":
        pages = list(TABS.values())
        index = pages.index(place.page) if place.page in pages else -1
        return replace(state, place=Place(pages[(index + 1) % len(pages)]), before=())
    if key in ("s", "S") and place.page in SORTS:
        columns = SORTS[place.page]
        step = 1 if key == "s" else -1
        return replace(state, place=replace(place, sort=(place.sort + step) % len(columns), is_reversed=False))
    if key == "r" and place.page in SORTS:
        return replace(state, place=replace(place, is_reversed=not place.is_reversed))
    return replace(state, place=_move(place, key, shown))


def _type(state: State, key: str) -> State:
    match key:
        case "enter":
            return replace(state, is_typing=False)
        case "esc":
            return replace(state, is_typing=False, filter="")
        case "backspace":
            return replace(state, filter=state.filter[:-1])
        case "clear":
            return replace(state, filter="")
        case _ if len(key) == 1 and key.isprintable() and len(state.filter) < MAX_FILTER:
            return replace(state, filter=state.filter + key)
        case _:
            return state


def _go(state: State, place: Place) -> State:
    return replace(state, place=place, before=(*state.before, state.place))


def _back(state: State) -> State:
    if state.before:
        return replace(state, place=state.before[-1], before=state.before[:-1])
    return replace(state, filter="")


def _open(state: State, shown: Shown) -> State:
    row = current(state.place, shown.rows)
    if row is None or state.place.page not in SORTS:
        return state
    page = Page.GROUP if state.place.page is Page.GROUPS else Page.INSTANCE
    at = replace(state, place=replace(state.place, selected=row))
    return replace(_go(at, Place(page, subject=row)), filter="")


def current(place: Place, rows: Sequence[Row]) -> Row | None:
    """The selected row; the first one if it is gone."""
    if not rows:
        return None
    return place.selected if place.selected in rows else rows[0]


_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1}


def _move(place: Place, key: str, shown: Shown) -> Place:
    page = max(1, shown.height - 1)
    step = _STEPS.get(key) or {"pageup": -page, "pagedown": page, " ": page}.get(key)
    has_rows = place.page in SORTS
    last = len(shown.rows) - 1 if has_rows else max(0, shown.lines - shown.height)
    row = current(place, shown.rows)
    at = shown.rows.index(row) if has_rows and row is not None else place.scroll
    if key in ("home", "g"):
        to = 0
    elif key in ("end", "G"):
        to = last
    elif step is not None:
        to = min(max(0, at + step), max(0, last))
    else:
        return place
    if not has_rows:
        return replace(place, scroll=to)
    return replace(place, selected=shown.rows[to]) if shown.rows else place
