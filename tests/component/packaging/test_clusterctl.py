"""The repository for clusterctl: components built from `config/`, and cluster templates."""

import os
from pathlib import Path

import pytest
import yaml

from component.packaging.references import ROOT, Manifest, broken_references, parse
from component.packaging.rendering import FLAVORS, TOPOLOGY, VARIABLES, clusterctl_release, kustomize, run, substitute
from component.packaging.schemas import cluster_api_faults, own_faults
from nstance.operator import config_file
from support import go_programs
from support.k8s_server import KUBECTL, NO_KUBECTL

pytestmark = pytest.mark.skipif(KUBECTL is None, reason=NO_KUBECTL)

CLUSTERCTL = go_programs.find("clusterctl")
needs_clusterctl = pytest.mark.skipif(CLUSTERCTL is None, reason=go_programs.is_missing("clusterctl"))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clusterctl_release(tmp_path_factory.mktemp("clusterctl"))


def generate(release: Path, *arguments: str, **variables: str) -> list[Manifest]:
    assert CLUSTERCTL is not None
    repository = release.parents[1]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(repository),
        "XDG_CONFIG_HOME": str(repository),
        "CLUSTERCTL_DISABLE_VERSIONCHECK": "true",
        **variables,
    }
    command = [CLUSTERCTL, "generate", *arguments, "--config", str(repository / "clusterctl.yaml")]
    return parse(run(*command, environment=environment))


def identities(manifests: list[Manifest]) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in manifests}


def check_components(manifests: list[Manifest], namespace: str) -> None:
    for each in manifests:
        if each["kind"] == "ValidatingWebhookConfiguration":
            [hook] = each["webhooks"]
            assert not hook.get("namespaceSelector")  # the operator fills it in
            hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    assert broken_references(manifests, namespace) == []
    [configuration] = [each for each in manifests if each["kind"] == "ConfigMap"]
    parsed = config_file.parse(configuration["data"]["config.yaml"].encode(), source="components")
    assert (parsed.cluster, parsed.tenant, list(parsed.shards)) == ("example-cluster", "default", ["dev-1"])


def test_components_are_what_config_holds(release: Path) -> None:
    text = (release / "infrastructure-components.yaml").read_text()
    check_components(parse(substitute(text, VARIABLES)), "nstance-system")
    assert identities(parse(substitute(text, VARIABLES))) == identities(kustomize(ROOT / "config/default"))


def test_metadata_names_a_contract_for_the_version(release: Path) -> None:
    metadata = yaml.safe_load((release / "metadata.yaml").read_text())
    major, minor, _ = release.name.removeprefix("v").split(".")
    series = {(each["major"], each["minor"]): each["contract"] for each in metadata["releaseSeries"]}
    assert series[int(major), int(minor)] == "v1beta2"


@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_template_is_complete(flavor: str, release: Path) -> None:
    text = (release / f"cluster-template-{flavor}.yaml").read_text()
    check_template(parse(substitute(text, {"CLUSTER_NAME": "example--default", "WORKER_MACHINE_COUNT": "3"})))


def check_template(manifests: list[Manifest]) -> None:
    for each in manifests:
        assert [*own_faults(each), *cluster_api_faults(each)] == []
    known = identities(manifests)
    [cluster] = [each for each in manifests if each["kind"] == "Cluster"]
    reference = cluster["spec"]["infrastructureRef"]
    assert (reference["kind"], reference["name"]) in known
    [pool] = [each for each in manifests if each["kind"] == "MachinePool"]
    assert pool["spec"]["replicas"] == 3
    assert pool["spec"]["clusterName"] == cluster["metadata"]["name"] == "example--default"
    inner = pool["spec"]["template"]["spec"]
    assert inner["clusterName"] == "example--default"
    assert inner["bootstrap"] == {"dataSecretName": ""}
    assert (inner["infrastructureRef"]["kind"], inner["infrastructureRef"]["name"]) in known
    [ours] = [each for each in manifests if each["kind"] == "NstanceMachinePool"]
    assert ours["metadata"]["name"] == pool["metadata"]["name"] == f"nstance-{ours['spec']['group']}"


def test_the_class_and_its_topology_fit(release: Path) -> None:
    made = parse((release / "clusterclass-nstance.yaml").read_text())
    text = (release / "cluster-template-topology.yaml").read_text()
    check_topology(made, parse(substitute(text, TOPOLOGY | {"CLUSTER_NAME": "example--default"})))


def check_topology(made: list[Manifest], generated: list[Manifest]) -> None:
    """Every template exists, every variable is declared, and what the patches change is there to be changed."""
    for each in (*made, *generated):
        assert [*own_faults(each), *cluster_api_faults(each)] == []
    known = {(each["kind"], each["metadata"]["name"]): each for each in made}
    cluster_class = known["ClusterClass", "nstance"]["spec"]
    [pool] = cluster_class["workers"]["machinePools"]
    for part in (cluster_class["infrastructure"], cluster_class["controlPlane"], pool["bootstrap"]):
        assert known[part["templateRef"]["kind"], part["templateRef"]["name"]]["spec"] == {"template": {"spec": {}}}
    template = known[pool["infrastructure"]["templateRef"]["kind"], pool["infrastructure"]["templateRef"]["name"]]
    variables = {each["name"] for each in cluster_class["variables"]}
    [definition] = cluster_class["patches"][0]["definitions"]
    assert definition["selector"]["matchResources"]["machinePoolClass"]["names"] == [pool["class"]]
    for patch in definition["jsonPatches"]:
        assert patch["valueFrom"]["variable"] in variables
        field = patch["path"].removeprefix("/spec/template/spec/")
        assert (field in template["spec"]["template"]["spec"]) is (patch["op"] == "replace")
    [cluster] = [each for each in generated if each["kind"] == "Cluster"]
    topology = cluster["spec"]["topology"]
    assert (topology["classRef"]["name"], topology["version"]) == ("nstance", "v1.34.4")
    assert {each["name"]: each["value"] for each in topology["variables"]} == {
        "group": "workers",
        "shards": ["dev-1", "dev-2"],
        "template": "worker",
    }
    assert topology["workers"]["machinePools"] == [{"class": "workers", "name": "workers", "replicas": 3}]


def test_the_check_finds_faults_of_a_template(release: Path) -> None:
    """Otherwise the tests above could not fail."""
    text = (release / "cluster-template-aws.yaml").read_text()
    broken = text.replace("instanceType:", "instancetype:").replace("shards: ", "shards: x")
    [pool] = [each for each in parse(substitute(broken, {"CLUSTER_NAME": "a"})) if each["kind"] == "NstanceMachinePool"]
    assert len(own_faults(pool)) == 2


@needs_clusterctl
@pytest.mark.parametrize("namespace", ["", "tenant-a"])
def test_clusterctl_generates_the_provider(namespace: str, release: Path) -> None:
    where = ["--target-namespace", namespace] if namespace else []
    name = f"nstance:{release.name}"
    manifests = generate(release, "provider", "--infrastructure", name, *where, **VARIABLES)
    check_components(manifests, namespace or "nstance-system")


@needs_clusterctl
@pytest.mark.parametrize("flavor", FLAVORS)
def test_clusterctl_generates_a_cluster(flavor: str, release: Path) -> None:
    path = release / f"cluster-template-{flavor}.yaml"
    arguments = ["cluster", "example--default", "--from", str(path), "--target-namespace", "tenant-a"]
    manifests = generate(release, *arguments, "--worker-machine-count", "3", "--kubernetes-version", "v1.34.4")
    assert {each["metadata"]["namespace"] for each in manifests} == {"tenant-a"}
    check_template(manifests)


@needs_clusterctl
def test_clusterctl_generates_a_topology_with_its_class(release: Path) -> None:
    """The version of the provider is named, so that no cluster is asked for it; the class comes with the flavor."""
    arguments = ["cluster", "example--default", "--flavor", "topology", "--target-namespace", "tenant-a"]
    name = f"nstance:{release.name}"
    manifests = generate(release, *arguments, "--infrastructure", name, "--worker-machine-count", "3", **TOPOLOGY)
    made = [each for each in manifests if each["kind"] != "Cluster"]
    check_topology(made, [each for each in manifests if each["kind"] == "Cluster"])
