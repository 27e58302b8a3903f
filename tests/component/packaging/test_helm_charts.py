"""The Helm charts, rendered by the real program for a matrix of values."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from component.packaging.references import ROOT, Manifest, broken_references, parse
from component.packaging.schemas import knows_kubernetes, kubernetes_faults
from nstance.operator import config_file, options
from support import go_programs, real_kube

HELM = go_programs.find("helm")
pytestmark = pytest.mark.skipif(HELM is None, reason=go_programs.is_missing("helm"))

CHART = ROOT / "deploy" / "helm"
CRD_CHART = ROOT / "deploy" / "helm-crds"
MINIMAL = yaml.safe_load((CHART / "ci/minimal-values.yaml").read_text())
MATRIX: dict[str, dict[str, Any]] = {
    "minimal": {},
    "full": yaml.safe_load((CHART / "ci/full-values.yaml").read_text()),
    "no webhooks": {"webhooks": False, "networkPolicy": {"enabled": True}},
    "no metrics": {"metricsBindAddress": "0", "networkPolicy": {"enabled": True}},
    "one replica": {"replicas": 1},
    "another workload cluster": {"capi": {"endpoint": "10.1.2.3:6443"}},
    "another account": {"capi": {"serviceAccount": "cluster-api"}},
    "no spreading": {"topologySpreadConstraints": [], "podDisruptionBudget": {"enabled": False}},
    "network policy": {"networkPolicy": {"enabled": True}},
    "service monitor": {"serviceMonitor": {"enabled": True}},
}


def helm(*arguments: str | Path, fails: bool = False) -> str:
    """What it prints; with `fails`, what it complains."""
    assert HELM is not None
    if arguments[0] in ("template", "lint"):  # a helm that Go built without flags thinks of an old Kubernetes
        arguments = (*arguments, "--kube-version", real_kube.KUBERNETES)
    done = subprocess.run([HELM, *arguments], text=True, capture_output=True, timeout=120, check=False)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def render(folder: Path, values: dict[str, Any], *arguments: str, fails: bool = False) -> str:
    path = folder / "values.yaml"
    path.write_text(json.dumps({**MINIMAL, **values}))
    where = arguments or ("nstance-operator", "--namespace", "tenant-a")
    name, *more = where
    return helm("template", name, CHART, "--values", path, *more, fails=fails)


def one(manifests: list[Manifest], kind: str, name: str = "") -> Manifest:
    [found] = [each for each in manifests if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return found


@pytest.mark.parametrize("name", MATRIX)
def test_every_reference_leads_somewhere(name: str, tmp_path: Path) -> None:
    manifests = parse(render(tmp_path, MATRIX[name]))
    assert broken_references(manifests, "tenant-a") == []
    assert [fault for each in manifests for fault in kubernetes_faults(each)] == []


@pytest.mark.skipif(not knows_kubernetes(), reason="Go has not downloaded Kubernetes: 'make test-kube' does")
def test_the_check_knows_the_fields_of_kubernetes(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    deployment = one(parse(render(tmp_path, {})), "Deployment")
    deployment["spec"]["template"]["spec"]["priorityclassname"] = "high"
    deployment["spec"]["replicas"] = "two"
    assert len(kubernetes_faults(deployment)) == 2


@pytest.mark.parametrize("name", MATRIX)
def test_the_operator_accepts_its_options_and_configuration(name: str, tmp_path: Path) -> None:
    manifests = parse(render(tmp_path, MATRIX[name]))
    [container] = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value", "") for each in container["env"]}
    parsed = options.parse(container["args"], variables, version="0")
    assert (parsed.webhook is None) is (name == "no webhooks")
    assert (parsed.metrics is None) is (name == "no metrics")
    content = one(manifests, "ConfigMap", "nstance-operator-config")["data"]["config.yaml"]
    assert config_file.parse(content.encode(), source="chart").cluster == "example-cluster"


def test_one_release_name_in_two_namespaces(tmp_path: Path) -> None:
    found = []
    for namespace in ("tenant-a", "tenant-b"):
        manifests = parse(render(tmp_path, MATRIX["full"], "nstance-operator", "--namespace", namespace))
        assert broken_references(manifests, namespace) == []
        found.append(
            {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in manifests}
        )
    assert found[0] & found[1] == set()


@pytest.mark.parametrize("chart", [CHART, CRD_CHART], ids=["operator", "crds"])
def test_lint_finds_nothing(chart: Path) -> None:
    files = sorted(chart.glob("ci/*-values.yaml"))
    for values in files or [chart / "values.yaml"]:
        helm("lint", "--strict", chart, "--values", values)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"replica": 3}, "replica"),
        ({"replicas": "two"}, "replicas"),
        ({"config": {**MINIMAL["config"], "tenant": "Team A"}}, "tenant"),
        ({"config": {"cluster_id": "a", "shards": {"b": {"operator_addr": "10.0.0.1:8993"}}}}, "registration_addr"),
        ({"podDisruptionBudget": {"maxUnavailable": "half"}}, "maxUnavailable"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"config": {"cluster_id": "", "shards": MINIMAL["config"]["shards"]}}, "config.cluster_id is needed"),
        ({"config": {"cluster_id": "a", "shards": {}}}, "config.shards is needed"),
        ({"metricsBindAddress": "0", "serviceMonitor": {"enabled": True}}, "serviceMonitor.enabled needs metrics"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    assert complaint in render(tmp_path, values, fails=True)


def test_every_value_has_a_schema_and_a_line_in_the_readme() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert set(values) == set(schema) - {"global"}
    readme = (CHART / "README.md").read_text()
    assert [name for name in values if f"`{name}" not in readme] == []


def test_marks_scheduling_and_pull_secrets_reach_the_pods(tmp_path: Path) -> None:
    manifests = parse(render(tmp_path, MATRIX["full"]))
    template = one(manifests, "Deployment")["spec"]["template"]
    assert {"team": "platform", "tier": "control"}.items() <= template["metadata"]["labels"].items()
    assert template["metadata"]["annotations"] == {"example.com/owner": "platform", "example.com/scrape": "true"}
    spec = template["spec"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["priorityClassName"] == "system-cluster-critical"
    zone, host = spec["topologySpreadConstraints"]
    own = {"app.kubernetes.io/name": "nstance-operator", "app.kubernetes.io/instance": "nstance-operator"}
    assert zone["labelSelector"] == {"matchLabels": own}
    assert host["labelSelector"] == {"matchLabels": {"team": "platform"}}
    for each in manifests:
        if "helm.sh/hook" not in each["metadata"].get("annotations", {}):
            assert each["metadata"]["labels"]["team"] == "platform", each
            assert each["metadata"]["annotations"]["example.com/owner"] == "platform", each


def test_optional_objects_come_only_when_asked_for(tmp_path: Path) -> None:
    def kinds(name: str) -> set[str]:
        return {each["kind"] for each in parse(render(tmp_path, MATRIX[name]))}

    assert "PodDisruptionBudget" in kinds("minimal")
    assert {"NetworkPolicy", "ServiceMonitor", "Secret"} & kinds("minimal") == set()
    assert "PodDisruptionBudget" not in kinds("one replica") | kinds("no spreading")
    assert "ValidatingWebhookConfiguration" not in kinds("no webhooks")
    assert {"NetworkPolicy", "ServiceMonitor", "PodDisruptionBudget", "Secret"} <= kinds("full")


def test_rights_are_those_of_config(tmp_path: Path) -> None:
    manifests = parse(render(tmp_path, {}, "nstance-operator", "--namespace", "x"))
    for role in parse((ROOT / "config/rbac/role.yaml").read_text()):
        names = {"ClusterRole": {"nstance-operator": "x-nstance-operator"}}.get(role["kind"], {})
        names.setdefault("nstance-capi-workload", "x-nstance-operator-capi-workload")
        found = one(manifests, role["kind"], names.get(role["metadata"]["name"], role["metadata"]["name"]))
        assert json.dumps(found["rules"]).replace("x-nstance-operator", "nstance-operator") == json.dumps(
            [{key: rule[key] for key in sorted(rule)} for rule in role["rules"]]
        )


def test_the_chart_of_definitions_upgrades_and_keeps_them() -> None:
    definitions = parse(helm("template", "nstance-crds", CRD_CHART))
    shipped = [parse(path.read_text())[0] for path in sorted((CHART / "crds").iterdir())]
    for each in definitions:
        assert each["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    key = "metadata"
    assert sorted(definitions, key=lambda each: str(each[key]["name"])) == sorted(
        shipped, key=lambda each: str(each[key]["name"])
    )


def test_a_package_has_no_test_values(tmp_path: Path) -> None:
    helm("package", CHART, "--destination", tmp_path)
    [package] = tmp_path.glob("*.tgz")
    shutil.unpack_archive(package, tmp_path, filter="data")
    names = {path.name for path in (tmp_path / "nstance-operator").iterdir()}
    assert {"Chart.yaml", "values.schema.json", "crds", "checks", "README.md"} <= names
    assert "ci" not in names
