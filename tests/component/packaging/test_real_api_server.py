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
from nstance.kube import crds
from support import go_programs
from support.k8s_server import KUBECTL, NO_KUBECTL

REAL = os.environ.get("NSTANCE_TEST_KUBECONFIG", "")
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


EARLIER = json.loads((ROOT / "tests/unit/operator/data/objects_without_pool_machines.json").read_text())


@pytest.mark.parametrize("item", EARLIER, ids=lambda item: f"{item['kind']} {item['metadata']['name']}")
def test_real_objects_of_an_earlier_version_load_unchanged(item: Manifest, namespace: str) -> None:
    kind, name, metadata = item["kind"], item["metadata"]["name"], {**item["metadata"], "namespace": namespace}
    metadata.pop("finalizers", None)  # nobody is here to remove them
    kubectl("create", "--validate=strict", "-f", "-", given=json.dumps({**item, "metadata": metadata}))
    patch = ("patch", "-n", namespace, kind, name, "--type=merge", "-p")
    if "status" in item:
        kubectl(*patch, json.dumps({"status": item["status"]}), "--subresource=status")
    kubectl(*patch, json.dumps({"metadata": {"labels": {"a": "b"}}}))
    found = json.loads(kubectl("get", "-n", namespace, kind, name, "-o", "json"))
    assert [found["spec"], found.get("status")] == [item["spec"], item.get("status")]
