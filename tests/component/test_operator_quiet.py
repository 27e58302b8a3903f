"""Ordinary work logs no warnings: somebody who looks for trouble in the log finds only trouble."""

import logging
from pathlib import Path

import pytest

from component.operator_world import KUBERNETES, Cluster, operating
from component.test_operator_pools import make_pool
from nstance.kube import kinds

pytestmark = pytest.mark.parametrize("kubernetes", KUBERNETES)


async def test_deletions_log_no_warnings(tmp_path: Path, kubernetes: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nstance.operator")
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 2}}, drain_timeout="0") as cluster:
        await make_pool(cluster, "jobs", 2, ["zone-a"], template="web")
        await cluster.pod("job", annotations={"on-demand.nstance.dev/group": "web"})
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 3)
        await cluster.until(lambda: len(cluster.running("zone-a", "jobs")) == 2)
        await cluster.until(lambda: _has_machines(cluster, 5))
        machines = [each["metadata"]["name"] for each in await cluster.all(kinds.MACHINE)]
        member = next(each for each in machines if each in map(str, cluster.running("zone-a", "web")))
        await cluster.kube.delete(kinds.MACHINE, member, namespace=cluster.namespace)
        await cluster.kube.delete(kinds.POD, "job", namespace=cluster.namespace)
        for kind in (kinds.MACHINE_POOL, kinds.NSTANCE_MACHINE_POOL):
            await cluster.kube.delete(kind, "jobs", namespace=cluster.namespace)
        await cluster.until(lambda: not cluster.running("zone-a", "jobs"))
        await cluster.until(lambda: _has_machines(cluster, 1))
        warnings = [
            (record.getMessage(), str(getattr(record, "reason", getattr(record, "problem", ""))))
            for record in caplog.records
            if record.levelno >= logging.WARNING and record.name.startswith(("nstance.operator", "nstance.kube"))
        ]
        # A shard on a loaded machine may doubt its lease for a moment: that is trouble, and no deletion's.
        assert not [each for each in warnings if not each[1].startswith("shard ")]


async def _has_machines(cluster: Cluster, count: int) -> bool:
    return all([len(await cluster.all(kind)) == count for kind in (kinds.MACHINE, kinds.NSTANCE_MACHINE)])
