"""Real clusterctl moves the operator's objects from one management cluster (dev-k8s) to another."""

import asyncio
import contextlib
import json
import os
import pathlib
from collections.abc import AsyncIterator

import pytest
import yaml

from component.packaging.references import Manifest
from nstance.kube import crds
from nstance.operator.controllers.resources import FINALIZER
from support import go_programs, real_kube
from support.k8s_server import DEADLINE, KUBECTL, NO_KUBECTL, Server, serving

CLUSTERCTL = go_programs.find("clusterctl")
SOURCE = go_programs.module_folder("sigs.k8s.io/cluster-api", real_kube.CLUSTER_API)
pytestmark = [
    pytest.mark.skipif(CLUSTERCTL is None or SOURCE is None, reason=go_programs.is_missing("clusterctl")),
    pytest.mark.skipif(KUBECTL is None, reason=NO_KUBECTL),
]

GROUP = "infrastructure.cluster.x-k8s.io"
INFRASTRUCTURE = f"{GROUP}/v1beta1"
CORE = "cluster.x-k8s.io/v1beta2"
NAME = "example--default"
SPECS: dict[str, tuple[str, str, str, Manifest]] = {  # kind: version, name, kind of the owner, spec
    "Cluster": (CORE, NAME, "", {"infrastructureRef": {"apiGroup": GROUP, "kind": "NstanceCluster", "name": NAME}}),
    "NstanceCluster": (INFRASTRUCTURE, NAME, "Cluster", {}),
    "MachinePool": (
        CORE,
        "nstance-web",
        "Cluster",
        {
            "clusterName": NAME,
            "replicas": 3,
            "template": {
                "spec": {
                    "clusterName": NAME,
                    "bootstrap": {"dataSecretName": ""},
                    "infrastructureRef": {"apiGroup": GROUP, "kind": "NstanceMachinePool", "name": "nstance-web"},
                }
            },
        },
    ),
    "NstanceMachinePool": (
        INFRASTRUCTURE,
        "nstance-web",
        "MachinePool",
        {"group": "web", "shards": ["dev-1"], "providerIDList": ["dev:///a"]},
    ),
    "NstanceShardGroup": (
        INFRASTRUCTURE,
        "web--dev-1",
        "NstanceMachinePool",
        {"group": "web", "shard": "dev-1", "size": 3},
    ),
    # Without an owner: only the labels of their CRDs take them along.
    "NstanceMachine": (INFRASTRUCTURE, "alone", "", {"group": "web"}),
    "NstanceMachineTemplate": (INFRASTRUCTURE, "workers", "", {"template": {"spec": {"group": "web"}}}),
}


def definitions() -> str:
    """The CRDs as `clusterctl init` labels them."""
    assert SOURCE is not None
    paths = [
        *sorted((SOURCE / "config/crd/bases").glob("cluster.x-k8s.io_*.yaml")),
        SOURCE / "cmd/clusterctl/config/crd/bases/clusterctl.cluster.x-k8s.io_providers.yaml",
    ]
    found = [yaml.load(path.read_text(), Loader=yaml.CSafeLoader) for path in paths]
    for each in found:
        each["metadata"]["labels"] = {"clusterctl.cluster.x-k8s.io": "", "cluster.x-k8s.io/v1beta2": "v1beta2"}
    items = found + [crds.definition(kind) for kind in crds.KINDS]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@contextlib.asynccontextmanager
async def management_cluster(folder: pathlib.Path) -> AsyncIterator[Server]:
    """No provider is registered there: the operator may be installed by other means than clusterctl."""
    await asyncio.to_thread(folder.mkdir)
    async with serving(folder / "k8s") as server:
        await server.kubectl("create", "namespace", "tenant-a")
        await server.kubectl("apply", "--server-side", "-f", "-", stdin=definitions())
        yield server


async def create(server: Server) -> None:
    made: dict[str, Manifest] = {}
    for kind, (version, name, owner, spec) in SPECS.items():
        metadata: Manifest = {"name": name, "namespace": "tenant-a", "finalizers": [FINALIZER]}
        if owner:
            found = made[owner]
            reference = {key: found[key] for key in ("apiVersion", "kind")} | {"name": found["metadata"]["name"]}
            metadata["ownerReferences"] = [{**reference, "uid": found["metadata"]["uid"]}]
        text = json.dumps({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
        made[kind] = json.loads(await server.kubectl("create", "-f", "-", "-o", "json", stdin=text))
    ready = {
        "initialization": {"infrastructureProvisioned": True, "controlPlaneInitialized": True},
        "conditions": [
            {
                "type": "ControlPlaneInitialized",
                "status": "True",
                "reason": "Initialized",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    }
    patch = ("patch", "clusters.cluster.x-k8s.io", NAME, "-n", "tenant-a", "--subresource=status", "--type=merge")
    await server.kubectl(*patch, "-p", json.dumps({"status": ready}))


async def stored(server: Server) -> dict[str, Manifest]:
    kinds = ",".join(f"{kind.lower()}s.{SPECS[kind][0].split('/')[0]}" for kind in SPECS)
    found = json.loads(await server.kubectl("get", kinds, "-n", "tenant-a", "-o", "json"))["items"]
    return {each["kind"]: each for each in found}


async def clusterctl(*arguments: str, server: Server) -> str:
    assert CLUSTERCTL is not None
    process = await asyncio.create_subprocess_exec(
        CLUSTERCTL,
        *arguments,
        env={**server.environment, "PATH": os.environ["PATH"], "CLUSTERCTL_DISABLE_VERSIONCHECK": "true"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(DEADLINE):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out.decode()
    return out.decode()


async def test_a_move_takes_every_object_and_loses_no_size(tmp_path: pathlib.Path) -> None:
    async with management_cluster(tmp_path / "old") as old, management_cluster(tmp_path / "new") as new:
        await create(old)
        await clusterctl("move", "-n", "tenant-a", "--to-kubeconfig", new.environment["KUBECONFIG"], server=old)
        assert await stored(old) == {}
        moved = await stored(new)
        assert set(moved) == set(SPECS)
        for kind, (_, name, owner, spec) in SPECS.items():
            item = moved[kind]
            assert item["metadata"]["name"] == name
            assert item["metadata"]["finalizers"] == [FINALIZER]
            assert spec.items() <= item["spec"].items()
            owners = [each["uid"] for each in item["metadata"].get("ownerReferences") or []]
            assert owners == ([moved[owner]["metadata"]["uid"]] if owner else [])
        assert not moved["Cluster"]["spec"].get("paused")
