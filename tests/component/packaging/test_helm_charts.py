"""The Helm charts, rendered by the real program for a matrix of values."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from component.packaging.references import ROOT, Manifest, broken_references, parse
from component.packaging.rendering import CHART, CRD_CHART, HELM, MATRIX, MINIMAL, chart, helm
from component.packaging.schemas import knows_kubernetes, kubernetes_faults
from nstance.operator import config_file, options
from support import go_programs

pytestmark = pytest.mark.skipif(HELM is None, reason=go_programs.is_missing("helm"))


def one(manifests: list[Manifest], kind: str, name: str = "") -> Manifest:
    [found] = [each for each in manifests if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return found


@pytest.mark.parametrize("name", MATRIX)
def test_every_reference_leads_somewhere(name: str, tmp_path: Path) -> None:
    manifests = parse(chart(tmp_path, MATRIX[name]))
    assert broken_references(manifests, "tenant-a") == []
    assert [fault for each in manifests for fault in kubernetes_faults(each)] == []


@pytest.mark.skipif(not knows_kubernetes(), reason="Go has not downloaded Kubernetes: 'make test-kube' does")
def test_the_check_knows_the_fields_of_kubernetes(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    deployment = one(parse(chart(tmp_path, {})), "Deployment")
    deployment["spec"]["template"]["spec"]["priorityclassname"] = "high"
    deployment["spec"]["replicas"] = "two"
    assert len(kubernetes_faults(deployment)) == 2


@pytest.mark.parametrize("name", MATRIX)
def test_the_operator_accepts_its_options_and_configuration(name: str, tmp_path: Path) -> None:
    manifests = parse(chart(tmp_path, MATRIX[name]))
    [container] = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value", "") for each in container["env"]}
    parsed = options.parse(container["args"], variables, version="0")
    assert (parsed.webhook is None) is (name == "no webhooks")
    assert (parsed.metrics is None) is (name == "no metrics")
    content = one(manifests, "ConfigMap", "nstance-operator-config")["data"]["config.yaml"]
    assert config_file.parse(content.encode(), source="chart").cluster == "example-cluster"


@pytest.mark.parametrize(
    ("first", "second"), [(("tenant-a", "release"), ("tenant-b", "release")), (("a-b", "c"), ("a", "b-c"))]
)
def test_two_releases_share_no_object(tmp_path: Path, first: tuple[str, str], second: tuple[str, str]) -> None:
    """Each with its namespace and its name."""
    found = []
    for namespace, name in (first, second):
        manifests = parse(chart(tmp_path, MATRIX["full"], namespace=namespace, name=name))
        assert broken_references(manifests, namespace) == []
        found.append(
            {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in manifests}
        )
    assert found[0] & found[1] == set()


@pytest.mark.parametrize("folder", [CHART, CRD_CHART], ids=["operator", "crds"])
def test_lint_finds_nothing(folder: Path) -> None:
    files = sorted(folder.glob("ci/*-values.yaml"))
    for values in files or [folder / "values.yaml"]:
        helm("lint", "--strict", folder, "--values", values)


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
    assert complaint in chart(tmp_path, values, fails=True)


def test_every_value_has_a_schema_and_a_line_in_the_readme() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert set(values) == set(schema) - {"global"}
    readme = (CHART / "README.md").read_text()
    assert [name for name in values if f"`{name}" not in readme] == []


def test_marks_scheduling_and_pull_secrets_reach_the_pods(tmp_path: Path) -> None:
    manifests = parse(chart(tmp_path, MATRIX["full"]))
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
        return {each["kind"] for each in parse(chart(tmp_path, MATRIX[name]))}

    assert "PodDisruptionBudget" in kinds("minimal")
    assert {"NetworkPolicy", "ServiceMonitor", "Secret"} & kinds("minimal") == set()
    assert "PodDisruptionBudget" not in kinds("one replica") | kinds("no spreading")
    assert "ValidatingWebhookConfiguration" not in kinds("no webhooks")
    assert {"NetworkPolicy", "ServiceMonitor", "PodDisruptionBudget", "Secret"} <= kinds("full")


def test_rights_are_those_of_config(tmp_path: Path) -> None:
    manifests = parse(chart(tmp_path, {}, namespace="x"))
    for role in parse((ROOT / "config/rbac/role.yaml").read_text()):
        names = {"ClusterRole": {"nstance-operator": "x.nstance-operator"}}.get(role["kind"], {})
        names.setdefault("nstance-capi-workload", "x.nstance-operator-capi-workload")
        found = one(manifests, role["kind"], names.get(role["metadata"]["name"], role["metadata"]["name"]))
        assert json.dumps(found["rules"]).replace("x.nstance-operator", "nstance-operator") == json.dumps(
            [{key: rule[key] for key in sorted(rule)} for rule in role["rules"]]
        )


def test_webhook_and_container_are_those_of_config(tmp_path: Path) -> None:
    """Both are written twice: names differ, nothing else may."""
    manifests = parse(chart(tmp_path, {}))
    configured = parse((ROOT / "config/webhook/manifests.yaml").read_text())
    kind = "ValidatingWebhookConfiguration"
    [ours], [theirs] = one(manifests, kind)["webhooks"], one(configured, kind)["webhooks"]
    for hook in (ours, theirs):
        del hook["clientConfig"], hook["namespaceSelector"]
        hook["matchConditions"] = [each for each in hook["matchConditions"] if each["name"] != "not-the-operator"]
    assert ours == theirs
    [deployment] = parse((ROOT / "config/manager/deployment.yaml").read_text())
    pods = [each["spec"]["template"]["spec"] for each in (one(manifests, "Deployment"), deployment)]
    [container], [other] = (pod["containers"] for pod in pods)
    same = ("ports", "livenessProbe", "readinessProbe", "resources", "securityContext", "volumeMounts")
    assert {key: container[key] for key in same} == {key: other[key] for key in same}
    assert pods[0]["securityContext"] == pods[1]["securityContext"]


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
