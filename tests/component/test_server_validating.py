"""`nstance-server --validate`: warnings beside errors, `--strict`, and `--online`."""

import json
from pathlib import Path
from typing import Any

import pytest

from nstance.clock import SystemClock, SystemRng
from nstance.server import main, options

Captured = pytest.CaptureFixture[str]


def document(tmp_path: Path, **group: Any) -> dict[str, Any]:
    secrets = tmp_path / "secrets"
    secrets.mkdir(exist_ok=True)
    secrets.chmod(0o700)
    return {
        "cluster": {"id": "demo", "secrets": {"provider": "file", "prefix": str(secrets)}},
        "shard": {"infra": {"provider": "memory"}, "subnet_pools": {"main": ["s"]}},
        "templates": {
            "web": {
                "kind": "web",
                "files": {
                    "password": {"kind": "secret", "source": "db-password"},
                    "logo": {"kind": "storage", "source": "{{ .Vars.theme }}/logo.png"},
                    "own": {"kind": "storage", "source": "hosts/{{ .Instance.ID }}"},
                },
            }
        },
        "groups": {"default": {"web": {"template": "web", "size": 5, "vars": {"theme": "dark"}, **group}}},
    }


def validate(*words: str) -> int:
    parsed = options.parse(["--storage", "file", *words], version="")
    return main.validate(parsed, SystemClock(), SystemRng())


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    place = tmp_path / "bucket" / "shard" / "one"
    place.mkdir(parents=True)
    (place / "config.jsonc").write_text(json.dumps(document(tmp_path)))
    return tmp_path / "bucket"


def test_warnings_are_shown_and_strict_makes_them_errors(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "one.jsonc"
    file.write_text(json.dumps(document(tmp_path, vars={}), indent=1))
    assert validate("--validate", str(file)) == 0
    output = capsys.readouterr()
    assert output.out == f"{file} is valid, with 1 warning\n"
    assert output.err.startswith("warning: templates.web.files.logo.source (line ")
    assert "var theme is not defined for default/web" in output.err
    assert validate("--validate", str(file), "--strict") == 1
    output = capsys.readouterr()
    assert output.err.startswith("error: templates.web.files.logo.source")
    file.write_text(json.dumps(document(tmp_path)))
    assert validate("--validate", str(file), "--strict") == 0


def test_overridden_sizes_are_known_where_the_bucket_is_named(bucket: Path, tmp_path: Path, capsys: Captured) -> None:
    where = ("--bucket", str(bucket), "--shard", "one")
    assert validate(*where, "--validate", "--strict") == 0
    (bucket / "shard" / "one" / "groups.jsonc").write_text('{"default": {"web": {"size": 3}}}')
    assert validate(*where, "--validate") == 0
    assert "size 5 in the file has no effect: 3 was set through the API" in capsys.readouterr().err
    assert validate(*where, "--validate", "--strict") == 1
    file = tmp_path / "new.jsonc"
    file.write_text(json.dumps(document(tmp_path, size=6)))
    capsys.readouterr()
    assert validate(*where, "--validate", str(file)) == 0
    assert "size 6 in the file has no effect: 3 was set through the API" in capsys.readouterr().err
    (bucket / "shard" / "one" / "groups.jsonc").unlink()
    assert validate(*where, "--validate", str(file), "--strict") == 0


def test_a_file_is_checked_although_the_dynamic_groups_cannot_be_read(
    bucket: Path, tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "one.jsonc"
    file.write_text(json.dumps(document(tmp_path)))
    (bucket / "shard" / "one" / "groups.jsonc").symlink_to("groups.jsonc")  # to itself: neither there nor absent
    where = ("--bucket", str(bucket), "--shard", "one")
    assert validate(*where, "--validate", str(file)) == 0
    assert "failed to read what the API overrides" in capsys.readouterr().err
    assert validate(*where, "--validate", str(file), "--online") == 1
    assert validate(*where, "--validate") == 1


def test_missing_secrets_and_objects_are_found_online(bucket: Path, tmp_path: Path, capsys: Captured) -> None:
    where = ("--bucket", str(bucket), "--shard", "one", "--validate", "--online")
    assert validate(*where) == 0
    output = capsys.readouterr().err
    assert "templates.web.files.password.source" in output
    assert "there is no secret db-password" in output
    assert "there is no object dark/logo.png" in output
    assert "hosts/" not in output  # only an instance has that key
    assert validate(*where, "--strict") == 1
    (tmp_path / "secrets" / "db-password").write_text("x")
    (bucket / "dark").mkdir()
    (bucket / "dark" / "logo.png").write_text("x")
    capsys.readouterr()
    assert validate(*where, "--strict") == 0
    assert capsys.readouterr().err == ""


def test_a_secret_that_cannot_be_read_is_not_called_missing(bucket: Path, tmp_path: Path, capsys: Captured) -> None:
    secret = tmp_path / "secrets" / "db-password"
    secret.mkdir()
    assert validate("--bucket", str(bucket), "--shard", "one", "--validate", "--online") == 0
    output = capsys.readouterr().err
    assert "failed to look for the secret db-password" in output
    assert "there is no secret" not in output


@pytest.mark.parametrize(
    "words",
    [("--shard", "one", "--bucket", "b", "--strict"), ("--validate", "x", "--online"), ("--shard", "a", "--online")],
)
def test_flags_that_lead_nowhere_are_wrong_usage(words: tuple[str, ...], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as end:
        options.parse(words, version="")
    assert end.value.code == 2
