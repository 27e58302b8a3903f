"""The repository for clusterctl: components built from `config/`, and cluster templates."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from component.packaging.references import ROOT, Manifest, broken_references, parse
from component.packaging.schemas import cluster_api_faults, own_faults
from nstance.operator import config_file
from support import go_programs
from support.k8s_server import KUBECTL, NO_KUBECTL

pytestmark = pytest.mark.skipif(KUBECTL is None, reason=NO_KUBECTL)

CLUSTERCTL = go_programs.find("clusterctl")
needs_clusterctl = pytest.mark.skipif(CLUSTERCTL is None, reason=go_programs.is_missing("clusterctl"))
SHARDS = '{"dev-1": {"registration_addr": "10.0.0.1:8992", "operator_addr": "10.0.0.1:8993"}}'
VARIABLES = {"NSTANCE_CLUSTER_ID": "example-cluster", "NSTANCE_SHARDS": SHARDS}
FLAVORS = ("aws", "google", "proxmox", "development")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clusterctl")
    script = ROOT / "scripts" / "build_clusterctl.py"
    done = subprocess.run([sys.executable, script, folder], text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def release(repository: Path) -> Path:
    [found] = (repository / "infrastructure-nstance").iterdir()
    return found


def substitute(text: str, variables: dict[str, str]) -> str:
    """As clusterctl does it; the tests with the real program check that."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        assert name in variables or default is not None, f"{name} is required"
        return variables.get(name) or default

    return re.sub(r"\$\{(\w+)(?::=([^}]*))?\}", value, text)


def generate(repository: Path, *arguments: str, **variables: str) -> list[Manifest]:
    assert CLUSTERCTL is not None
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(repository),
        "XDG_CONFIG_HOME": str(repository),
        "CLUSTERCTL_DISABLE_VERSIONCHECK": "true",
        **variables,
    }
    command = [CLUSTERCTL, "generate", *arguments, "--config", str(repository / "clusterctl.yaml")]
    done = subprocess.run(command, text=True, capture_output=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return parse(done.stdout)


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


def test_components_are_what_config_holds(repository: Path) -> None:
    text = (release(repository) / "infrastructure-components.yaml").read_text()
    check_components(parse(substitute(text, VARIABLES)), "nstance-system")
    assert KUBECTL is not None
    done = subprocess.run(
        [KUBECTL, "kustomize", ROOT / "config/default"], text=True, capture_output=True, timeout=120, check=True
    )
    assert identities(parse(substitute(text, VARIABLES))) == identities(parse(done.stdout))


def test_metadata_names_a_contract_for_the_version(repository: Path) -> None:
    metadata = yaml.safe_load((release(repository) / "metadata.yaml").read_text())
    major, minor, _ = release(repository).name.removeprefix("v").split(".")
    series = {(each["major"], each["minor"]): each["contract"] for each in metadata["releaseSeries"]}
    assert series[int(major), int(minor)] == "v1beta2"


@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_template_is_complete(flavor: str, repository: Path) -> None:
    text = (release(repository) / f"cluster-template-{flavor}.yaml").read_text()
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


def test_the_check_finds_faults_of_a_template(repository: Path) -> None:
    """Otherwise the tests above could not fail."""
    text = (release(repository) / "cluster-template-aws.yaml").read_text()
    broken = text.replace("instanceType:", "instancetype:").replace("shards: ", "shards: x")
    [pool] = [each for each in parse(substitute(broken, {"CLUSTER_NAME": "a"})) if each["kind"] == "NstanceMachinePool"]
    assert len(own_faults(pool)) == 2


@needs_clusterctl
@pytest.mark.parametrize("namespace", ["", "tenant-a"])
def test_clusterctl_generates_the_provider(namespace: str, repository: Path) -> None:
    where = ["--target-namespace", namespace] if namespace else []
    name = f"nstance:{release(repository).name}"
    manifests = generate(repository, "provider", "--infrastructure", name, *where, **VARIABLES)
    check_components(manifests, namespace or "nstance-system")


@needs_clusterctl
@pytest.mark.parametrize("flavor", FLAVORS)
def test_clusterctl_generates_a_cluster(flavor: str, repository: Path) -> None:
    path = release(repository) / f"cluster-template-{flavor}.yaml"
    arguments = ["cluster", "example--default", "--from", str(path), "--target-namespace", "tenant-a"]
    manifests = generate(repository, *arguments, "--worker-machine-count", "3", "--kubernetes-version", "v1.34.4")
    assert {each["metadata"]["namespace"] for each in manifests} == {"tenant-a"}
    check_template(manifests)
