"""A few random kills at a real API server, in `make test-kube`; `make kube-chaos` makes a hundred."""

import os
from pathlib import Path

import pytest

from component import kube_chaos
from component.operator_world import REAL
from support import real_kube


@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.environ.get(REAL), reason=f"{REAL} is not set: make test-kube")
async def test_real_kills_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At an API server of its own: other tests use the one of `make test-kube`."""
    with real_kube.running() as programs:
        monkeypatch.setenv(REAL, str(programs.kubeconfig))
        chaos = await kube_chaos.play(8, 1, tmp_path, programs)
    assert sum(chaos.kills.values()) == 8
