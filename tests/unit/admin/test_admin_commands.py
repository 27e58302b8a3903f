"""The command line itself: help, completion, start-up, names."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from nstance.admin import main
from nstance.admin.help import LazyGroup
from nstance.admin.options import Format

HEAVY = ("rich", "obstore", "pydantic", "cryptography", "asyncio", "yaml", "uvloop", "aiohttp")


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*path, name))


ALL = dict(commands(main.root))


def test_the_commands_of_the_specification_are_there() -> None:
    wanted = (
        "nonce, register-operator, revoke-operator, ca show, ca rotate, rekey, secret put, secret get, secret list, "
        "secret rm, config put, config get, journal"
    )
    assert {("cluster", *words.split()) for words in wanted.split(", ")} <= ALL.keys()


READING = (
    "config diff, config status, group list, group show, group plan, group history, instance list, instance show, "
    "instance logs, top, context list, context show, "
    "events, status, wait, doctor, serve, completion, cluster operators, cluster ca show, cluster nonce-key show, "
    "cluster secret get, cluster secret list, cluster config get, cluster journal, cluster nonce, cluster backup, "
    "token list, audit list, audit export, audit verify"
)


def test_every_changing_command_can_be_tried_without_consequences() -> None:
    """A nonce changes nothing before somebody uses it. The doctor removes what it writes, and has --read-only."""
    reading = {tuple(words.split()) for words in READING.split(", ")}
    leaves = {path: command for path, command in ALL.items() if not isinstance(command, click.Group)}
    assert reading <= leaves.keys()
    for path, command in leaves.items():
        assert any("--dry-run" in param.opts for param in command.params) == (path not in reading), path


def test_every_command_that_lists_or_shows_something_has_all_formats() -> None:
    names = {"list", "show", "logs", "status", "history", "diff", "plan", "operators", "events", "journal", "doctor"}
    found = {path: command for path, command in ALL.items() if path and path[-1] in names}
    assert len(found) > 12
    for path, command in found.items():
        types = [type(param.type) for param in command.params if param.name == "form"]
        assert types == [Format] or isinstance(command, click.Group), path


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_help_has_examples_that_name_real_commands(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main.root, [*path, "--help"])
    assert result.exit_code == 0
    _, found, examples = result.stdout.partition("\nExamples:\n")
    assert found
    for line in re.findall(r"nstance-admin ((?:[a-z-]+ ?)+)", examples):
        words = tuple(line.split())
        assert any(words[:length] in ALL for length in range(1, len(words) + 1))
    assert CliRunner().invoke(main.root, [*path, "-h"]).stdout == result.stdout


@pytest.mark.parametrize("path", [path for path in ALL if path], ids=" ".join)
def test_flags_in_examples_exist(path: tuple[str, ...]) -> None:
    """An example of a command uses only what the command has."""
    help = CliRunner().invoke(main.root, [*path, "--help"]).stdout
    for example in re.findall(r"nstance-admin (.*(?:\\\n.*)?)", help.partition("\nExamples:\n")[2]):
        words = example.replace("|", " ").split()
        owner = max((p for p in ALL if p and tuple(words[: len(p)]) == p), key=len)
        known = {option for param in ALL[owner].params for option in param.opts}
        ours = words[: words.index("jq")] if "jq" in words else words
        assert {word.rstrip(")") for word in ours if re.fullmatch(r"--[a-z-]+\)?", word)} <= known


def test_help_and_completion_import_nothing_slow() -> None:
    """All modules of `commands` together: what starts fast stays so."""
    names = [f"nstance.admin.commands.{name}" for name in (*_modules(), "cluster")]
    code = f"import importlib, sys; [importlib.import_module(n) for n in {names!r}]; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "click" in loaded.split()
    assert [name for name in HEAVY if name in loaded.split()] == []


def _modules() -> Iterator[str]:
    import pathlib

    from nstance.admin import commands as package

    for path in pathlib.Path(package.__path__[0]).glob("*.py"):
        if path.stem != "__init__":
            yield path.stem


@pytest.mark.parametrize("words", [["--help"], ["cluster", "--help"]])
def test_listing_commands_imports_none_of_them(words: list[str]) -> None:
    code = (
        f"import sys; from nstance.admin.main import root; root.main({words!r}, standalone_mode=False); "
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "Commands:" in done.stdout
    assert "nstance.admin.commands.cluster_operators" not in done.stderr.split()
    assert "nstance.admin.options" not in done.stderr.split()


def test_python_m_runs_it_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nstance.admin", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert re.fullmatch(r"nstance-admin, version \d+\.\d+\.\d+\n", done.stdout)


def test_a_terminal_without_our_letters_gets_their_numbers() -> None:
    code = "from nstance.admin import main; main.root.main = lambda **_: print('\u2713'); main.main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.stdout == "\\u2713\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_and_its_answers(shell: str) -> None:
    result = CliRunner().invoke(main.root, ["completion", shell])
    assert result.exit_code == 0
    assert "_NSTANCE_ADMIN_COMPLETE" in result.stdout
    ask = {
        "_NSTANCE_ADMIN_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "nstance-admin cluster re",
        "COMP_CWORD": "re" if shell == "fish" else "2",
    }
    answer = CliRunner().invoke(main.root, [], prog_name="nstance-admin", env=ask)
    for name in ("register-operator", "revoke-operator", "rekey"):
        assert name in answer.stdout
    assert "journal" not in answer.stdout


def test_completion_for_an_unknown_shell_is_wrong_usage() -> None:
    assert CliRunner().invoke(main.root, ["completion", "cmd"]).exit_code == 2


def test_a_bug_is_one_line_and_a_traceback_on_request() -> None:
    from nstance.admin.help import Command, global_flags

    @click.command(cls=Command)
    @global_flags
    def broken() -> None:
        raise ZeroDivisionError("surprise")

    quiet = CliRunner().invoke(broken, [])
    assert quiet.exit_code == 1
    assert quiet.stderr.count("\n") == 1
    assert "unexpected ZeroDivisionError: surprise" in quiet.stderr
    for loud in (
        CliRunner().invoke(broken, ["--debug"]),
        CliRunner().invoke(broken, [], env={"NSTANCE_ADMIN_DEBUG": "1"}),
    ):
        assert loud.exit_code == 1
        assert "Traceback" in loud.stderr


def test_lazy_commands_say_the_same_in_the_list_as_in_the_table() -> None:
    for command in ALL.values():
        if isinstance(command, LazyGroup):
            listing = command.get_help(click.Context(command, terminal_width=200))
            for name in command.list_commands(click.Context(command)):
                assert re.search(rf"^  {name} +[A-Z]", listing, re.MULTILINE)
