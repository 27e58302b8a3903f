"""Real helm installs, upgrades and removes the charts at dev-k8s, a Kubernetes API over files."""

import asyncio
import json
import os
import pathlib
from collections.abc import AsyncIterator

import pytest

from component.packaging.references import ROOT
from nstance.kube import crds, kinds
from support import go_programs
from support.k8s_server import DEADLINE, KUBECTL, NO_KUBECTL, Server, serving

HELM = go_programs.find("helm")
pytestmark = [
    pytest.mark.skipif(HELM is None, reason=go_programs.is_missing("helm")),
    pytest.mark.skipif(KUBECTL is None, reason=NO_KUBECTL),
]

CHART = ROOT / "deploy" / "helm"
VALUES = CHART / "ci/minimal-values.yaml"
POOLS = "customresourcedefinitions/nstancemachinepools.infrastructure.cluster.x-k8s.io.json"
POOL = """\
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: NstanceMachinePool
metadata: {name: nstance-test, namespace: tenant-a}
spec: {group: test, shards: [dev-1]}
"""


@pytest.fixture
async def server(tmp_path: pathlib.Path) -> AsyncIterator[Server]:
    async with serving(tmp_path / "k8s") as found:
        await found.kubectl("create", "namespace", "tenant-a")
        await found.kubectl("create", "namespace", "tenant-b")
        yield found


async def helm(server: Server, *arguments: str | pathlib.Path, fails: bool = False) -> str:
    assert HELM is not None
    process = await asyncio.create_subprocess_exec(
        HELM,
        *map(str, arguments),
        env={**server.environment, "PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(DEADLINE):
            out, complaint = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode != 0) is fails, f"{out.decode()}{complaint.decode()}"
    return complaint.decode() if fails else out.decode()


async def install(server: Server, namespace: str, verb: str = "install") -> str:
    return await helm(server, verb, "nstance-operator", CHART, "--namespace", namespace, "--values", VALUES)


async def test_one_release_name_in_two_namespaces(server: Server) -> None:
    assert "nstance-admin cluster nonce" in await install(server, "tenant-a")
    await install(server, "tenant-b")
    releases = json.loads(await helm(server, "list", "--all-namespaces", "--output", "json"))
    assert {(each["namespace"], each["status"]) for each in releases} == {
        ("tenant-a", "deployed"),
        ("tenant-b", "deployed"),
    }
    await helm(server, "uninstall", "nstance-operator", "--namespace", "tenant-a")
    hooks = server.folder / "validatingwebhookconfigurations"
    assert [path.name for path in hooks.iterdir()] == ["tenant-b.nstance-operator.json"]
    assert server.file("deployments/tenant-b/nstance-operator.json") is not None
    assert server.file("deployments/tenant-a/nstance-operator.json") is None


async def test_the_chart_of_definitions_upgrades_what_the_other_chart_installed(server: Server) -> None:
    await install(server, "tenant-a")
    await server.kubectl("apply", "-f", "-", stdin=POOL)
    await server.kubectl("label", "crd", server.file(POOLS)["metadata"]["name"], "cluster.x-k8s.io/v1beta2-")
    assert "nstance-crds" in await install(server, "tenant-a", "upgrade")
    assert "cluster.x-k8s.io/v1beta2" not in server.file(POOLS)["metadata"]["labels"]  # Helm does not upgrade it
    crd_chart = ("nstance-crds", ROOT / "deploy" / "helm-crds", "--namespace", "tenant-a")
    assert "ownership" in await helm(server, "upgrade", "--install", *crd_chart, fails=True)
    await helm(server, "upgrade", "--install", *crd_chart, "--take-ownership")
    wanted = crds.definition(kinds.NSTANCE_MACHINE_POOL)["metadata"]["labels"]
    assert wanted.items() <= server.file(POOLS)["metadata"]["labels"].items()
    await helm(server, "uninstall", "nstance-crds", "--namespace", "tenant-a")
    assert server.file(POOLS) is not None
    assert server.file("nstancemachinepools/tenant-a/nstance-test.json")["spec"]["group"] == "test"
