"""Real clusterctl moves what an operator works on to another real API server. `make test-kube` runs this."""

import asyncio
import contextlib
import dataclasses
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from component.cluster_api_world import NEEDS_CLUSTER_API, _kubelets, _workload_rights, together
from component.operator_world import REAL, Cluster, _prepare
from component.test_operator_machines import make_machine, missing, ready
from component.test_operator_pool_machines import POOL, TWO, members, running
from nstance.clock import SystemClock
from nstance.kube import kinds, kubeconfig
from nstance.kube.http import HttpKube
from nstance.operator.controllers import resources
from support import cluster_api, go_programs, real_kube

CLUSTERCTL = go_programs.find("clusterctl")
pytestmark = [
    NEEDS_CLUSTER_API,
    pytest.mark.skipif(CLUSTERCTL is None, reason=go_programs.is_missing("clusterctl")),
]
INVENTORY = "cmd/clusterctl/config/crd/bases/clusterctl.cluster.x-k8s.io_providers.yaml"
KINDS = ("clusters", "machines", "machinepools", "machinesets", "machinedeployments")


def init(path: Path) -> None:
    """What `clusterctl init` does to the CRDs of Cluster API."""
    real_kube.kubectl(path, "apply", "--server-side", "-f", str(real_kube.cluster_api_source() / INVENTORY))
    for label in ("clusterctl.cluster.x-k8s.io=", "cluster.x-k8s.io/v1beta2=v1beta2"):
        real_kube.kubectl(path, "label", "crd", *(f"{each}.cluster.x-k8s.io" for each in KINDS), label)


def move(source: Path, target: Path, namespace: str) -> None:
    command = [str(CLUSTERCTL), "move", "-n", namespace, f"--kubeconfig={source}", f"--to-kubeconfig={target}"]
    done = subprocess.run(
        command, env={**os.environ, "CLUSTERCTL_DISABLE_VERSIONCHECK": "true"}, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def has_nodes(cluster: Cluster, number: int) -> bool:
    """Whether there are that many Machines, each with its Node: clusterctl wants that."""
    found = await members(cluster)
    return len(found) == number and all("nodeRef" in resources.status(each) for each in found.values())


@contextlib.asynccontextmanager
async def another(old: Cluster, work: Path) -> AsyncIterator[Cluster]:
    """The same shards and a real API server of its own with Cluster API, where no operator has started yet."""
    async with contextlib.AsyncExitStack() as stack:
        manager = real_kube.running()
        path = (await asyncio.to_thread(manager.__enter__)).kubeconfig
        stack.push_async_callback(asyncio.to_thread, manager.__exit__, None, None, None)
        await asyncio.to_thread(init, path)
        access, clock = kubeconfig.load([path]), SystemClock()
        kube = HttpKube(access, clock)
        stack.push_async_callback(kube.close)
        new = dataclasses.replace(
            old,
            kube=kube,
            connect=lambda access: HttpKube(access, clock),
            access=access,
            kubeconfig=path.read_text(),
            operators={},
        )
        await _prepare(new)
        await stack.enter_async_context(_workload_rights(new))
        await asyncio.to_thread(work.mkdir)
        controllers = cluster_api.running(path, new.namespace, work)
        await asyncio.to_thread(controllers.__enter__)
        stack.push_async_callback(asyncio.to_thread, controllers.__exit__, None, None, None)
        tasks = [asyncio.create_task(each) for each in (new._follow_vms(), _kubelets(new))]
        try:
            yield new
        finally:
            for name in list(new.operators):
                await new.crash(name)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_move_loses_no_instance(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Instances of pools and an on-demand one. Afterwards the operator there does what people ask for."""
    source = Path(os.environ[REAL])
    async with together(tmp_path, caplog, TWO) as old:
        await make_machine(old, "alone", group="web", failureDomain="zone-a")
        await old.until(lambda: ready(old, "alone"))
        await old.until(lambda: has_nodes(old, 5))
        before = running(old)
        await old.crash()
        await asyncio.to_thread(init, source)
        async with another(old, tmp_path / "there") as new:
            await asyncio.to_thread(move, source, new._kubeconfig(), old.namespace)
            assert await old.all(kinds.MACHINE) == []
            assert await old.all(kinds.NSTANCE_MACHINE) == []
            await new.start()
            await new.until(lambda: has_nodes(new, 5))
            assert running(new) == before
            await new.scale("web", 5)
            await new.until(lambda: len(running(new)) == 6)
            assert set(before) < set(running(new))
            await new.kube.delete(kinds.MACHINE, "alone", namespace=new.namespace)
            await new.until(lambda: missing(new, "alone"))
            await new.until(lambda: len(running(new)) == 5)
            pool = await new.kube.get(kinds.MACHINE_POOL, POOL, namespace=new.namespace)
            assert pool["spec"]["replicas"] == 5
