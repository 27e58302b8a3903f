"""Commands of pages that need no running server, run by a shell as a person would type them."""

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from component.admin_cluster_world import KEY, Bucket, authority
from nstance.config import jsonc
from support import docs_pages
from support.docs_pages import ROOT, runnable

EXAMPLE = ROOT / "examples" / "config-dev.jsonc"


def run(commands: Sequence[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
        cwd=folder,
        env=docs_pages.environment(**environment),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_configuration(tmp_path: Path) -> None:
    (tmp_path / "my.jsonc").write_text(EXAMPLE.read_text())
    (tmp_path / "bucket/shard/one").mkdir(parents=True)
    (tmp_path / "bucket/shard/one/config.jsonc").write_text(EXAMPLE.read_text())
    file, stored, warned, tried = runnable("configuration.md")
    # The page's bucket is in S3; here it is a directory.
    stored, warned = (each.replace("--bucket my-bucket", "--storage file --bucket bucket") for each in (stored, warned))
    storage = {"NSTANCE_ADMIN_STORAGE_PROVIDER": "file", "NSTANCE_ADMIN_STORAGE_BUCKET": "bucket"}
    run([file, stored, warned, tried], tmp_path, **storage, NSTANCE_ENCRYPTION_KEY=KEY)


def test_operator(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "bucket")
    asyncio.run(authority(bucket.store, create=True))
    storage = {"NSTANCE_ADMIN_STORAGE_PROVIDER": "file", "NSTANCE_ADMIN_STORAGE_BUCKET": "bucket"}
    run(runnable("operator.md"), tmp_path, **storage, NSTANCE_ENCRYPTION_KEY=KEY)
    assert (tmp_path / "nonce.jwt").read_text().count(".") == 2


@pytest.mark.parametrize("page", ["load-balancers.md", "images-and-userdata.md", "aws.md", "gcp.md"])
def test_examples_that_are_only_checked(tmp_path: Path, page: str) -> None:
    example = docs_pages.blocks(page, "jsonc")[0]  # others are parts of one
    (tmp_path / "my.jsonc").write_text(example)
    assert runnable(page)
    run(runnable(page), tmp_path)


def test_forecast(tmp_path: Path) -> None:
    """As on the page, but for a few instances and a short time."""
    (tmp_path / "shard.jsonc").write_text(EXAMPLE.read_text())
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = "\n".join(runnable("forecast.md"))
    for long, short in (("--agents 5000", "--agents 6"), ("--hours 24", "--hours 0.2"), ("--agents 200", "--agents 8")):
        assert long in commands
        commands = commands.replace(long, short)
    output = run([commands.replace("--hours 6", "--hours 0.5")], tmp_path)
    assert "half of all spot VMs are taken back" in output
    assert "brown-out" in output
    assert (tmp_path / "forecast-spot-storm.svg").exists()


@pytest.mark.parametrize("page", [page for page in docs_pages.PAGES if docs_pages.blocks(page, "jsonc")])
def test_every_example_can_be_read(page: str) -> None:
    for block in docs_pages.blocks(page, "jsonc"):
        text = block if block.lstrip().startswith(("{", "//")) else f"{{{block}}}"
        assert isinstance(jsonc.read(text, source=page).value, dict)
