"""`make test-kube` on a machine without its programs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import real_kube


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_all_missing_programs_are_named_at_once(tmp_path: Path, ci: str, code: int) -> None:
    """Also with a full cache: Go fetches the CRDs. In CI a skipped run must not look like a passed one."""
    cache = tmp_path / "nstance" / real_kube.CACHE.name
    cache.mkdir(parents=True)
    for program in (*real_kube.PROGRAMS, real_kube.CLUSTER_API_PROGRAM.name):
        (cache / program).touch()
    environment = {**os.environ, "PATH": str(tmp_path), "CI": ci, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, str(Path(real_kube.__file__)), "false"]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    for name in ("kubectl", "openssl", "Go", "etcd"):
        assert name in done.stderr
    assert "Traceback" not in done.stderr
