"""Tokens of people: what the file holds, and who gets in."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from nstance.admin import errors, main, tokens
from nstance.admin.tokens import TokenFile
from nstance.model.ids import TenantId
from nstance.model.roles import Role
from nstance.sim.rng import SeededRng
from support.hand_clock import HandClock

ACME = TenantId("acme")
RNG = SeededRng("tokens")


def created(person: str = "ada", life: float | None = None) -> tuple[str, tokens.Token]:
    return tokens.create(person, Role.VIEWER, ACME, now=HandClock().wall(), life=life, rng=RNG)


def test_the_file_is_private_and_holds_no_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    text, token = created()
    tokens.store(path, {token.id: token})
    assert path.stat().st_mode & 0o777 == 0o600
    assert text.rpartition("_")[2] not in path.read_text()
    assert tokens.load(path) == {token.id: token}


def test_a_token_is_valid_until_it_expires_or_is_removed(tmp_path: Path) -> None:
    path, clock = tmp_path / "tokens.json", HandClock()
    (text, token), (short, brief) = created(), created(life=60)
    tokens.store(path, {each.id: each for each in (token, brief)})
    file = TokenFile(path, clock)
    assert (file.find(text), file.find(short)) == (token, brief)
    other = text[:-1] + ("0" if text[-1] != "0" else "1")
    assert [file.find(each) for each in (other, text.upper(), text + "\n", "", token.id)] == [None] * 5
    clock.now += 61
    assert (file.find(text), file.find(short), file.get(brief.id)) == (token, None, None)
    tokens.store(path, {})
    clock.now += tokens.CHECK_SECONDS
    assert file.find(text) is None


def test_a_file_that_becomes_unreadable_lets_nobody_in_and_says_so(tmp_path: Path) -> None:
    path, clock, problems = tmp_path / "tokens.json", HandClock(), list[str]()
    text, token = created()
    tokens.store(path, {token.id: token})
    file = TokenFile(path, clock, on_problem=problems.append)
    path.unlink()
    clock.now += tokens.CHECK_SECONDS
    assert (file.find(text), len(problems)) == (None, 1)
    tokens.store(path, {token.id: token})
    clock.now += tokens.CHECK_SECONDS
    assert file.find(text) == token


@pytest.mark.parametrize(
    "change",
    [
        {"role": "root"},
        {"person": "a b"},
        {"tenant": "A"},
        {"created": "1"},
        {"more": 1},
        {"sha256": 7},
        {"expires": "x"},
    ],
)
def test_a_damaged_file_is_rejected(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "tokens.json"
    _, token = created()
    tokens.store(path, {token.id: token})
    document = json.loads(path.read_text())
    document["tokens"][0] |= change
    path.write_text(json.dumps(document))
    with pytest.raises(errors.CommandError, match="not a file of tokens"):
        tokens.load(path)


def test_tokens_are_created_listed_and_revoked(tmp_path: Path) -> None:
    file = ["--tokens-file", str(tmp_path / "tokens.json")]

    def run(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(main.root, ["token", *words])
        assert result.exit_code == code, result.output
        return result.stdout

    text = run("create", *file, "--person", "ada@example.com", "--role", "drainer", "--tenant", "acme").strip()
    run("create", *file, "--person", "bob", "--role", "viewer", "--expiry", "1h")
    found = {each["person"]: each for each in json.loads(run("list", *file, "-o", "json"))}
    assert (found["ada@example.com"]["role"], found["ada@example.com"]["tenant"]) == ("drainer", "acme")
    assert found["bob"]["expires"] is not None
    assert text.split("_")[1] == found["ada@example.com"]["token"]
    run("revoke", *file, found["ada@example.com"]["token"])
    run("revoke", *file, found["ada@example.com"]["token"], code=1)
    assert [each["person"] for each in json.loads(run("list", *file, "-o", "json"))] == ["bob"]
    run("create", *file, "--person", "a person", "--role", "viewer", code=1)
