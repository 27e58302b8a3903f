"""What reaches the screen, files and other programs."""

import asyncio
import json
import pathlib
import stat
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nstance.admin import files, output
from nstance.admin.cluster import shards
from nstance.clock import SystemClock
from nstance.objects import memory
from nstance.objects.port import Key

ROWS: list[output.Row] = [
    {"name": "a" * 300, "tags": ["x", "y"], "count": 3},
    {"name": "[red]b\x1b[2J", "tags": [], "count": None},
]


def test_tables_in_a_pipe_are_neither_cut_nor_coloured_nor_marked_up(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_rows(ROWS, "table", columns=("name", "tags", "count"))
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "TAGS", "COUNT"]
    assert first.split() == ["a" * 300, "x,", "y", "3"]
    assert second == "[red]b\\x1b[2J"  # not filled up to the width of the first
    output.print_rows([], "table", columns=("name",))
    assert capsys.readouterr().out.split() == ["NAME"]


def test_programs_get_the_values_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_rows(ROWS, "json", columns=("name",))
    assert json.loads(capsys.readouterr().out) == ROWS
    output.print_rows(ROWS, "yaml", columns=("name",))
    assert yaml.safe_load(capsys.readouterr().out) == ROWS
    output.print_record(ROWS[0], "json")
    assert json.loads(capsys.readouterr().out) == ROWS[0]


@given(st.text())
def test_no_text_steers_a_terminal(text: str) -> None:
    assert output.escape(text).isprintable()


def test_times_are_utc() -> None:
    assert output.timestamp(1_800_000_000.9) == "2027-01-15T08:00:00Z"
    assert output.timestamp(None) is None


def test_a_file_is_replaced_as_a_whole_with_its_mode(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    for mode in (files.PUBLIC, files.PRIVATE):
        files.write(path, b"content", mode=mode)
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"content"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"directory"):
        files.write(tmp_path / "folder", b"content")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


def test_shards_are_found_beside_long_journals() -> None:
    """Names that sort around the slash, and one listing per shard."""
    store = memory.MemoryStore(SystemClock())
    listings = 0

    async def count(verb: memory.Verb, _: str) -> memory.Fate:
        nonlocal listings
        listings += verb is memory.Verb.LIST
        return memory.Fate()

    async def fill() -> list[str]:
        for name in ("a", "a-1", "a0", "b"):
            for key in ("config.jsonc", *(f"journal/{slot:020d}.json" for slot in range(1, 50)), "snapshot/x.json"):
                await store.create(Key(f"shard/{name}/{key}"), b"{}")
        await store.create(Key("shard/Not A Shard/config.jsonc"), b"{}")
        await store.create(Key("shard/stray"), b"{}")
        await store.create(Key("shardless/a/config.jsonc"), b"{}")
        return [str(name) for name in await shards.names(store.view(count))]

    assert sorted(asyncio.run(fill())) == ["a", "a-1", "a0", "b"]
    assert listings <= 7


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
@pytest.mark.parametrize("columns", [20, 50, 80])
def test_a_narrow_terminal_breaks_lines_and_no_words(
    columns: int, terminal: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", terminal)
    row = {"instance": "web-01jw51srryegh9snf9cmeh3k4q", "state": "draining", "notes": "scale-down, until the evening"}
    output.print_rows([row], "table", columns=("instance", "state", "notes"), unbroken=("instance",))
    shown = capsys.readouterr().out.split()
    assert {"web-01jw51srryegh9snf9cmeh3k4q", "draining", "scale-down,", "until", "evening"} <= set(shown)
