"""Contexts: what a flag gets if neither the command line nor the environment says it."""

import json
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from nstance.admin import contexts, main
from nstance.admin.options import ENVIRONMENT

SERVERS = "zone-a=127.0.0.1:1,zone-b=127.0.0.1:2"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("NSTANCE_CONTEXT", "NSTANCE_ADMIN_SERVERS", "NSTANCE_ADMIN_SHARD", "NSTANCE_ADMIN_IDENTITY_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(main.root, list(words), env=environment)


def ok(*words: str, **environment: str) -> str:
    result = run(*words, **environment)
    assert result.exit_code == 0, result.output
    return result.stdout


def identity_of(*words: str, **environment: str) -> str:
    """The directory that a command looks into: the error names it."""
    result = run(*words, **environment)
    assert result.exit_code == 1
    assert "there is no identity in" in result.stderr, result.stderr
    return result.stderr.partition("there is no identity in ")[2].partition(";")[0]


def test_a_flag_beats_the_environment_and_the_environment_beats_the_context(home: Path) -> None:
    ok("context", "set", "prod", "--servers", SERVERS, "--identity-dir", "/of/context", "--shard", "zone-a")
    assert identity_of("group", "list") == "/of/context"
    assert identity_of("group", "list", NSTANCE_ADMIN_IDENTITY_DIR="/of/environment") == "/of/environment"
    flag = identity_of("group", "list", "--identity-dir", "/of/flag", NSTANCE_ADMIN_IDENTITY_DIR="/of/environment")
    assert flag == "/of/flag"


def test_the_context_is_chosen_by_flag_then_variable_then_use(home: Path) -> None:
    for name in ("one", "two", "three"):
        ok("context", "set", name, "--servers", SERVERS, "--identity-dir", f"/of/{name}", "--shard", "zone-b")
    assert identity_of("group", "list") == "/of/one"  # the first became the current one
    ok("context", "use", "two")
    assert identity_of("group", "list") == "/of/two"
    assert identity_of("group", "list", NSTANCE_CONTEXT="three") == "/of/three"
    assert identity_of("group", "list", "--context", "one", NSTANCE_CONTEXT="three") == "/of/one"
    assert identity_of("--context", "one", "group", "list", NSTANCE_CONTEXT="three") == "/of/one"
    assert ok("context", "list", "-o", "name").split() == ["one", "three", "two"]
    assert json.loads(ok("context", "show", "-o", "json"))["name"] == "two"


def test_all_shards_on_the_command_line_beats_the_shard_of_the_context(home: Path) -> None:
    ok("context", "set", "prod", "--servers", SERVERS, "--identity-dir", "/x", "--shard", "zone-a")
    assert identity_of("group", "list", "--all-shards") == "/x"


def test_the_file_is_private_and_holds_what_was_set(home: Path) -> None:
    ok("context", "set", "prod", "--servers", SERVERS, "--key-source", "/etc/key")
    ok("context", "set", "prod", "--shard", "zone-a", "--unset", "key-source")
    path = home / "nstance" / "contexts.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {
        "current": "prod",
        "contexts": {"prod": {"servers": SERVERS, "shard": "zone-a"}},
    }
    ok("context", "delete", "prod", "--dry-run")
    assert "prod" in path.read_text()
    ok("context", "delete", "prod")
    assert json.loads(path.read_text()) == {"current": None, "contexts": {}}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["context", "use", "prd"], "there is no context prd (did you mean prod?)"),
        (["context", "set", "prod"], "nothing to set"),
        (["context", "set", "prod", "--unset", "shrad"], "there is no flag shrad (did you mean shard?)"),
        (["context", "set", "prod", "--servers", "x"], "expected SHARD=HOST:PORT"),
        (["context", "set", "prod", "--timeout", "0"], "between 1ms and 24h"),
        (["context", "set", "Prod", "--shard", "a"], "lower-case letters"),
        (["group", "list", "--context", "prd", "--all-shards"], "there is no context prd"),
        (["group", "list", "--shard", "zone-c"], "--servers has no shard zone-c (did you mean zone-"),
    ],
)
def test_mistakes_are_wrong_usage_in_one_line(home: Path, words: list[str], expected: str) -> None:
    ok("context", "set", "prod", "--servers", SERVERS)
    result = run(*words)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"contexts": 3}', '{"contexts": {"a": {"servers": 1}}}'])
def test_a_damaged_file_is_named_and_does_not_hide_behind_flags(home: Path, content: str) -> None:
    path = home / "nstance" / "contexts.json"
    path.parent.mkdir()
    path.write_text(content)
    result = run("group", "list", "--all-shards")
    assert result.exit_code == 2
    assert str(path) in result.stderr


def test_every_setting_is_a_flag_with_a_variable() -> None:
    def options(command: click.Command) -> set[str | None]:
        found = {each.name for each in command.params if str(getattr(each, "envvar", "")).startswith(ENVIRONMENT)}
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                found |= options(below)
        return found

    assert set(contexts.SETTINGS) <= options(main.root)
