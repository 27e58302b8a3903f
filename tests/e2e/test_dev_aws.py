"""`make dev-aws`: instances boot their userdata, register, are reclaimed and replaced. `make test-dev-aws` runs it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nstance.dev.aws import box
from nstance.dev.aws.moto import MissingError, find_moto
from nstance.dev.errors import DevError

ROOT = Path(__file__).parents[2]


def missing() -> str:
    """Why this cannot run."""
    if not os.environ.get("NSTANCE_TEST_DEV_AWS"):
        return "takes minutes (make test-dev-aws)"
    if shutil.which("bwrap") is None:
        return "bwrap is not installed (apt-get install bubblewrap)"
    try:
        find_moto()
        box.find_bundle()
    except (MissingError, DevError) as problem:
        return str(problem)
    return ""


pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(700),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


@pytest.mark.parametrize(
    ("config", "expected"),
    [("config-aws.jsonc", "is set up"), ("config-netsy.jsonc", "userdata ended with exit code 0")],
)
def test_instances_boot_and_are_replaced(config: str, expected: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nstance.dev.aws.box", "--once", "--dir", str(tmp_path / "box")]
    command += ["--config", f"examples/{config}"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=660)
    log = tmp_path / "box/logs/server.log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text()[-4000:] if log.exists() else "")
    assert "3 instances booted their userdata, registered and have their files" in done.stdout
    assert "it was replaced" in done.stdout
    consoles = [path.read_text() for path in (tmp_path / "box/instances").glob("*/console.log")]
    assert sum(expected in console for console in consoles) >= 3  # the last one may still be at work
