"""Shards, the operator and Cluster API's own controllers, at the real API server of `make test-kube`.

    async with together(tmp_path, caplog, {"zone-a": {"web": 2}}) as cluster:
        await cluster.until(lambda: ...)

Nodes say that they are ready, as kubelets would have it. When it ends, nobody may have been refused anything: neither
Cluster API a right, nor the operator a write by Cluster API's webhooks.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from component.operator_world import REAL, Cluster, operating
from nstance.kube import errors, kinds
from nstance.kube.kinds import Kind
from nstance.operator.controllers import resources
from support import cluster_api, real_kube

CLUSTER_API_SETTING = os.environ.get(real_kube.CLUSTER_API_VARIABLE, "only make test-kube builds and starts them")
NEEDS_CLUSTER_API = pytest.mark.skipif(
    str(real_kube.CLUSTER_API_PROGRAM) != CLUSTER_API_SETTING,
    reason=f"Cluster API's controllers cannot be run: {CLUSTER_API_SETTING}",
)

ROLES = Path(__file__).parents[2] / "config" / "rbac" / "role.yaml"
KUBELET_CONDITIONS = [
    {"type": type, "status": status, "reason": "Kubelet", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    for type, status in (
        ("Ready", "True"),
        ("MemoryPressure", "False"),
        ("DiskPressure", "False"),
        ("PIDPressure", "False"),
    )
]


@contextlib.asynccontextmanager
async def together(
    dir: Path,
    caplog: pytest.LogCaptureFixture,
    groups: dict[str, dict[str, int]],
    *,
    drain_timeout: str = "0",
    alone: Callable[[Cluster], Awaitable[None]] | None = None,
    feature_gates: str = "",
) -> AsyncIterator[Cluster]:
    """Cluster API has the rights that its manifests and ours give it. `alone`: what happens before there is a Cluster API;
    the operator is started there, or by the test. `feature_gates`: of Cluster API."""
    caplog.set_level(logging.INFO, "nstance")
    work = dir / "cluster-api"
    work.mkdir()
    async with operating(dir, "real", groups, start=False, drain_timeout=drain_timeout) as cluster:
        async with _workload_rights(cluster):
            if alone is not None:
                await alone(cluster)
            admin = Path(os.environ[REAL])
            manager = cluster_api.running(admin, cluster.namespace, work, feature_gates=feature_gates)
            running = await asyncio.to_thread(manager.__enter__)
            kubelets = asyncio.create_task(_kubelets(cluster))

            async def remove() -> None:
                await asyncio.to_thread(manager.__exit__, None, None, None)

            cluster.remove_cluster_api = remove
            try:
                if alone is None:
                    await cluster.start()
                yield cluster
            finally:
                kubelets.cancel()
                await remove()  # a second time it does nothing
        assert not [line for line in running.errors() if "forbidden" in line]
    refused = [record for record in caplog.records if "admission webhook" in str(getattr(record, "reason", ""))]
    assert not refused, [record.__dict__ for record in refused]


@contextlib.asynccontextmanager
async def _workload_rights(cluster: Cluster) -> AsyncIterator[None]:
    """What config/rbac gives the account behind the kubeconfig Secret."""
    [role] = [
        each for each in yaml.safe_load_all(ROLES.read_text()) if each["metadata"]["name"] == "nstance-capi-workload"
    ]
    name, group = f"{cluster.namespace}-workload", cluster_api.RBAC
    subject = {"kind": "ServiceAccount", "name": "nstance-capi-workload", "namespace": cluster.namespace}
    bodies = {
        Kind(group, "v1", "ClusterRole", "clusterroles", False): {"rules": role["rules"]},
        Kind(group, "v1", "ClusterRoleBinding", "clusterrolebindings", False): {
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        },
    }
    for kind, body in bodies.items():
        await cluster.kube.create(kind, {"metadata": {"name": name}, **body})
    try:
        yield
    finally:
        for kind in bodies:
            await cluster.kube.delete(kind, name)


async def _kubelets(cluster: Cluster) -> None:
    while True:
        for name, node in (await cluster.nodes()).items():
            if not resources.status(node).get("conditions"):
                with contextlib.suppress(errors.NotFoundError):
                    await cluster.kube.patch(
                        kinds.NODE, name, {"status": {"conditions": KUBELET_CONDITIONS}}, subresource="status"
                    )
        await asyncio.sleep(0.05)
