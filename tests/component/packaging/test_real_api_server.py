"""A real API server accepts every manifest, with strict field validation. `make test-kube` runs this."""

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from component.packaging.references import ROOT, Manifest, parse
from component.packaging.rendering import (
    FLAVORS,
    MATRIX,
    TOPOLOGY,
    VARIABLES,
    chart,
    clusterctl_release,
    kustomize,
    overlay,
    run,
    substitute,
)
from nstance.clock import SystemClock
from nstance.kube import crds, kubeconfig
from nstance.kube.http import HttpKube
from support import go_programs
from support.k8s_server import KUBECTL, NO_KUBECTL

REAL = os.environ.get("NSTANCE_TEST_KUBECONFIG", "")
STORED = ROOT / "tests/unit/operator/data"
EARLIER: list[Manifest] = [
    each for path in sorted(STORED.glob("objects_*.json")) for each in json.loads(path.read_text())
]
pytestmark = [
    pytest.mark.skipif(not REAL, reason="run by 'make test-kube'"),
    pytest.mark.skipif(KUBECTL is None, reason=NO_KUBECTL),
]


def kubectl(*arguments: str, given: str = "") -> str:
    assert KUBECTL is not None
    return run(KUBECTL, "--kubeconfig", REAL, *arguments, given=given)


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"packaging-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def try_out(manifests: list[Manifest]) -> None:
    """Stores nothing. Kinds of the Prometheus operator are not served there."""
    known = [each for each in manifests if each["kind"] not in ("ServiceMonitor", "Namespace")]
    text = yaml.safe_dump_all(known)
    flags = ["--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"]
    answer = kubectl("apply", *flags, "-f", "-", given=text)
    assert answer.count("serverside-applied") == len(known)


def test_real_overlays(namespace: str, tmp_path: Path) -> None:
    settings: dict[str, object] = {"namespace": namespace, "namePrefix": "a-"}
    try_out(kustomize(overlay(tmp_path / "overlay", settings)))


@pytest.mark.skipif(go_programs.find("helm") is None, reason=go_programs.is_missing("helm"))
@pytest.mark.parametrize("name", MATRIX)
def test_real_charts(name: str, namespace: str, tmp_path: Path) -> None:
    try_out(parse(chart(tmp_path, MATRIX[name], namespace=namespace)))


def test_real_clusterctl_repository(namespace: str, tmp_path: Path) -> None:
    release = clusterctl_release(tmp_path)
    for path in release.glob("cluster*.yaml"):
        manifests = parse(substitute(path.read_text(), {**TOPOLOGY, "CLUSTER_NAME": "example--default"}))
        try_out([{**each, "metadata": {**each["metadata"], "namespace": namespace}} for each in manifests])
    assert len(list(release.glob("cluster-template-*.yaml"))) == len(FLAVORS) + 1
    components = substitute((release / "infrastructure-components.yaml").read_text(), VARIABLES)
    try_out(parse(components.replace("nstance-system", namespace)))


def test_real_bootstrap_configs_are_ready_at_once(namespace: str) -> None:
    """The schema's default is the status that Cluster API waits for."""
    made = {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "NstanceBootstrapConfig"}
    kubectl("create", "-n", namespace, "-f", "-", given=json.dumps({**made, "metadata": {"name": "a"}, "spec": {}}))
    found = json.loads(kubectl("get", "-n", namespace, "nstancebootstrapconfig", "a", "-o", "json"))
    assert found["status"] == {"dataSecretName": "", "ready": True, "initialization": {"dataSecretCreated": True}}


def test_real_definitions_are_labelled_for_a_move() -> None:
    found = kubectl("get", "crd", "-l", "clusterctl.cluster.x-k8s.io,clusterctl.cluster.x-k8s.io/move", "-o", "name")
    assert {f"{kind.plural}.{kind.group}" for kind in crds.KINDS} <= {line.rpartition("/")[2] for line in found.split()}


async def test_real_objects_of_earlier_versions_load_unchanged(namespace: str) -> None:
    """As they were stored by earlier operators. Here the rules of the CRDs count, which no other test evaluates."""
    kube, kinds = HttpKube(kubeconfig.load([Path(REAL)]), SystemClock()), {kind.name: kind for kind in crds.KINDS}
    try:
        for number, item in enumerate(EARLIER):
            kind, name, status = kinds[item["kind"]], f"earlier-{number}", item.get("status")
            metadata = {key: item["metadata"].get(key, {}) for key in ("labels", "annotations")}
            await kube.create(kind, {"metadata": {**metadata, "name": name}, "spec": item["spec"]}, namespace=namespace)
            if status is not None:
                await kube.patch(kind, name, {"status": status}, namespace=namespace, subresource="status")
            await kube.patch(kind, name, {"metadata": {"labels": {"a": "b"}}}, namespace=namespace)
            found = await kube.get(kind, name, namespace=namespace)
            assert (found["spec"], found.get("status")) == (item["spec"], status)
    finally:
        await kube.close()
