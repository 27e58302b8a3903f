"""`top` without a terminal: from a fleet and a size to lines, and from a key to what is shown."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nstance.admin.top import model, pages
from nstance.admin.top.model import STATES, Detail, Fleet
from nstance.admin.top.pages import Surface
from nstance.admin.top.state import Page, Place, Shown, State, press
from nstance.model import ids
from nstance.model.ids import Kind

NOW = 1_800_000_000.0
SIZES = [(40, 10), (80, 24), (120, 40), (200, 60)]
HOSTILE = "\x1b[2J\n日本語 " * 20
REVISION = "e907dd79c59d"
KEYS = [
    *"q?/sSr123jkgGhl xyz",
    *("up", "down", "left", "right", "enter", "esc", "tab", "backspace", "clear"),
    *("pageup", "pagedown", "home", "end"),
]


def make_id(number: int) -> str:
    return ids.instance_id(Kind("web"), ids.uuid7(int(NOW * 1000) - 60_000, number))


def make_group(name: str, size: int, **more: Any) -> dict[str, Any]:
    return {
        "shard": "zone-a",
        "group": name,
        "tenant": "default",
        "template": "web",
        "size": size,
        "size_source": {"kind": "config", "by": None, "at": None, "config_size": size},
        "actual_size": size,
        "ready_size": size,
        "not_ready": 0,
        "blocked": [],
        "draining": 0,
        "on_demand": 0,
        "instance_type": "small",
        "subnet_pool": "main",
        "instance_types": [],
        "markets": [],
        "prefer": None,
        "exhausted_offers": [],
        "vars": {},
        "overrides": [],
        "static": True,
        "paused": False,
        "rollout": None,
        "rolled_back_from": None,
        "file_instance_type": None,
        "last_error": None,
        "provider_ids": [],
        "cost": None,
        "etag": "1",
        "infra_hash": f"sha256:{REVISION}00",
        "runtime_hash": None,
        **more,
    }


def make_instance(number: int, group: str = "web", state: str = "running", **more: Any) -> dict[str, Any]:
    row = {"shard": "zone-a", "id": make_id(number), "group": group, "state": state, "revision": REVISION}
    return {**row, "ready": state == "running", "created": int(NOW * 1000) - 60_000, "ipv4": "10.0.0.1", **more}


def make_shard(name: str = "zone-a", error: str | None = None) -> dict[str, Any]:
    plane = {"leader": "a", "epoch": 3, "leading_ms": 7_380_000, "provider_rate": 0.0, "metrics": []}
    standbys = [{"server": "b", "answered_ms": 100}]
    return {"shard": name, "reachable": error is None, "error": error, "control_plane": {**plane, "standbys": standbys}}


def make_event(number: int, message: str = "instance is ready", group: str = "web") -> dict[str, Any]:
    return {
        "shard": "zone-a",
        "time": "2027-01-15T08:00:00.000Z",
        "group": group,
        "instance_id": make_id(number),
        "reason": "ready",
        "message": message,
        "id": number,
        "trouble": False,
    }


def make_fleet(count: int, **more: Any) -> Fleet:
    """Four fifths in one group, the rest in thirty; some in every state."""
    instances = [make_instance(each, "web" if each % 5 else f"small-{each // 5 % 30:02}") for each in range(count)]
    odd = ("pending", "starting", "draining", "deleting", "failed")
    for index, state in zip(range(0, count, 7), itertools.cycle(odd), strict=False):
        instances[index] |= {"state": state, "ready": False, "reason": "expired"}
    groups = [make_group(name, 3) for name in sorted({each["group"] for each in instances})]
    events = [make_event(each, HOSTILE) for each in range(min(count, 300))]
    fields = {"shards": [make_shard()], "groups": groups, "instances": instances, "events": events, "now": NOW}
    return Fleet(**{**fields, **more})


def texts(drawing: pages.Drawing) -> list[str]:
    return ["".join(text for text, _ in line) for line in drawing.lines]


def screen(fleet: Fleet, state: State = State(), size: tuple[int, int] = (80, 24)) -> list[str]:  # noqa: B008
    return texts(pages.draw(fleet, state, Surface(*size)))


@pytest.mark.parametrize("size", [*SIZES, (20, 5), (1, 1)])
@pytest.mark.parametrize("count", [0, 7, 300, 5_000])
def test_every_page_fits_every_size(count: int, size: tuple[int, int]) -> None:
    fleet = make_fleet(count, alarms=[{"level": "bad", "shard": "zone-a", "group": "web", "message": HOSTILE}] * 9)
    subject = ("zone-a", fleet.instances[0]["id"]) if count else ("zone-a", make_id(1))
    places = [Place(page) for page in (Page.GROUPS, Page.INSTANCES, Page.EVENTS, Page.HELP)]
    places += [Place(Page.GROUP, ("zone-a", "web")), Place(Page.INSTANCE, subject)]
    for place in places:
        lines = screen(fleet, State(place, filter="" if count % 2 else "web"), size)
        assert len(lines) == size[1]
        assert all(cell_len(line) <= size[0] and line.isprintable() for line in lines)


def test_the_first_page_answers_in_one_look() -> None:
    fleet = make_fleet(7, alarms=[{"level": "bad", "shard": "zone-a", "group": "web", "message": "blocked: no image"}])
    shown = "\n".join(screen(fleet))
    assert "zone-a  leader a (epoch 3, for 2h3m)  standby b 0.1s ago" in shown
    assert "7 instances in 3 groups  ● 6 ready  · 1 pending" in shown
    assert "! web: blocked: no image" in shown
    assert "●●●●●" in shown


def test_a_shard_that_does_not_answer_is_named_with_the_reason() -> None:
    shown = screen(Fleet(shards=[make_shard(), make_shard("zone-b", "connection refused")], now=NOW))
    assert any("zone-b  does not answer: connection refused" in line for line in shown)
    assert any("waiting for an answer" in line for line in screen(Fleet(shards=[make_shard(error="x")], now=NOW)))


def test_a_shard_that_was_not_asked_yet_is_no_trouble() -> None:
    shown = screen(Fleet(shards=[make_shard(error="not connected yet")], now=NOW))
    assert any("zone-a  connecting" in line for line in shown)
    assert not any("does not answer" in line for line in shown)


def test_with_several_shards_every_row_names_its_shard() -> None:
    groups = [make_group("web", 1, shard=shard) for shard in ("zone-a", "zone-b")]
    instances = [make_instance(1), make_instance(2, shard="zone-b")]
    events = [make_event(1), {**make_event(2), "shard": "zone-b"}]
    shards = [make_shard("zone-a"), make_shard("zone-b")]
    fleet = Fleet(shards=shards, groups=groups, instances=instances, events=events, now=NOW)
    lines = screen(fleet)
    assert [line.split()[:4] for line in lines if "SHARD" in line] == [["SHARD", "GROUP", "READY", "INSTANCES"]]
    assert any(line.split() == ["zone-b", "web", "1/1", "●"] for line in lines)
    for key in "23":
        assert sum("zone-b" in line for line in screen(fleet, draw_and_press(fleet, State(), key))) == 2
    assert draw_and_press(fleet, State(), "down", "enter").place.subject == ("zone-b", "web")


def test_states_differ_without_color_and_without_unicode() -> None:
    for index in (1, 2):
        signs = [STATES[state][index] for state in STATES]
        assert len(set(signs)) == len(signs)
    assert all(STATES[state][2].isascii() for state in STATES)
    shown = texts(pages.draw(make_fleet(7), State(), Surface(80, 24, is_unicode=False)))
    assert any("# 6 ready" in line for line in shown)
    [selected] = [line for line in shown if line.startswith(">")]
    assert "small-00" in selected


@given(st.dictionaries(st.sampled_from(sorted(STATES)), st.integers(0, 5_000)), st.integers(0, 200))
def test_cells_show_every_state_that_there_is_room_for(states: dict[str, int], width: int) -> None:
    present = {state for state, number in states.items() if number}
    found = model.cells(states, width)
    assert len(found) == min(width, sum(states.values()))
    assert set(found) <= present
    if width >= len(present):
        assert set(found) == present


def test_an_instance_of_an_earlier_revision_is_outdated_and_an_on_demand_one_is_not() -> None:
    assert model.state_of(make_instance(1), REVISION) == "ready"
    assert model.state_of(make_instance(1, revision="other"), REVISION) == "outdated"
    assert model.state_of(make_instance(1, revision="other", on_demand=True), REVISION) == "ready"
    assert model.state_of(make_instance(1, ready=False), REVISION) == "not ready"
    assert model.state_of(make_instance(1, suspect=True), REVISION) == "unresponsive"
    assert model.state_of(make_instance(1, state="from-the-future"), REVISION) == "pending"


def draw_and_press(fleet: Fleet, state: State, *keys: str) -> State:
    for key in keys:
        state = press(state, key, pages.draw(fleet, state, Surface(80, 24)).shown)
    return state


def test_keys_open_a_group_and_an_instance_and_go_back() -> None:
    fleet = make_fleet(7)
    group = draw_and_press(fleet, State(), "end", "enter")
    assert (group.place.page, group.place.subject) == (Page.GROUP, ("zone-a", "web"))
    instance = draw_and_press(fleet, group, "down", "enter")
    assert instance.place.page is Page.INSTANCE
    assert instance.place.subject[1] in "\n".join(screen(fleet, instance))
    back = draw_and_press(fleet, instance, "esc")
    assert back.place.selected == instance.place.subject
    assert draw_and_press(fleet, back, "esc").place.selected == ("zone-a", "web")
    assert draw_and_press(fleet, back, "q").is_done


def test_a_filter_is_typed_kept_and_cleared() -> None:
    fleet = make_fleet(300)
    state = draw_and_press(fleet, State(), "2", "/", *"drainq", "backspace", *"ing", "enter")
    assert (state.filter, state.is_typing, state.is_done) == ("draining", False, False)
    rows = [line for line in screen(fleet, state) if "web-" in line]
    assert rows
    assert all("▽ draining" in line for line in rows)
    assert draw_and_press(fleet, state, "/", "esc").filter == ""
    assert "nothing matches 'drainingx'" in "\n".join(screen(fleet, draw_and_press(fleet, state, "/", "x", "enter")))


def test_the_selected_row_stays_selected_while_rows_move() -> None:
    fleet = make_fleet(300)
    state = draw_and_press(fleet, State(), "2", "s", *["down"] * 50)
    chosen = state.place.selected
    assert chosen is not None
    newer = Fleet(shards=fleet.shards, groups=fleet.groups, now=NOW, instances=[make_instance(9_999), *fleet.instances])
    [selected] = [line for line in screen(newer, state) if line.startswith(">")]
    assert chosen[1] in selected
    without = Fleet(shards=fleet.shards, groups=fleet.groups, now=NOW, instances=[make_instance(9_999)])
    [selected] = [line for line in screen(without, state) if line.startswith(">")]
    assert make_id(9_999) in selected


def test_sorting_and_reversing() -> None:
    groups = [make_group("calm", 2), make_group("short", 9, ready_size=1), make_group("big", 50)]
    fleet = Fleet(shards=[make_shard()], groups=groups, now=NOW)
    names = {}
    for sort in ("name", "attention", "size", "missing"):
        found = model.group_rows(fleet, "", sort, is_reversed=False)
        names[sort] = [each["group"] for each in found]
    assert names["name"] == ["big", "calm", "short"]
    assert names["attention"][0] == names["missing"][0] == "short"
    assert names["size"] == ["big", "short", "calm"]
    assert draw_and_press(fleet, State(), "s").sort == "attention"
    assert draw_and_press(fleet, State(), "s", "S", "S").sort == "missing"
    reversed_rows = pages.draw(fleet, draw_and_press(fleet, State(), "r"), Surface(80, 24)).shown.rows
    assert list(reversed_rows) == [("zone-a", "short"), ("zone-a", "calm"), ("zone-a", "big")]


def test_events_are_newest_first_and_can_be_scrolled() -> None:
    events = [make_event(each, f"message {each}") for each in range(200)]
    fleet = Fleet(shards=[make_shard()], events=events, now=NOW)
    shown = screen(fleet, draw_and_press(fleet, State(), "3"))
    assert "message 199" in shown[4]
    assert "message 0 " in screen(fleet, draw_and_press(fleet, State(), "3", "end"))[-2] + " "
    assert "message 198" in screen(fleet, draw_and_press(fleet, State(), "3", "down"))[4]


def test_what_the_opened_instance_was_last_stays_when_it_is_gone() -> None:
    subject = ("zone-a", make_id(1))
    state = State(Place(Page.INSTANCE, subject))
    waiting = "\n".join(screen(Fleet(shards=[make_shard()], now=NOW), state))
    assert "waiting for an answer" in waiting
    other = Fleet(shards=[make_shard()], now=NOW, detail=Detail({"instance_id": make_id(2)}, None))
    assert make_id(2) not in "\n".join(screen(other, state))


@given(st.lists(st.sampled_from(KEYS), max_size=40), st.sampled_from([0, 7, 60]), st.sampled_from(SIZES))
def test_no_sequence_of_keys_breaks_it(keys: list[str], count: int, size: tuple[int, int]) -> None:
    fleet, state = make_fleet(count), State()
    for key in keys:
        drawing = pages.draw(fleet, state, Surface(*size))
        state = press(state, key, drawing.shown)
    assert len(screen(fleet, state, size)) == size[1]
    assert press(state, "esc", Shown()).filter == "" or state.before


def test_a_key_without_rows_changes_nothing() -> None:
    for key in ("enter", "up", "down", "end", "pagedown", "unknown"):
        assert press(State(), key, Shown()) == State()
