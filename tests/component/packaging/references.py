"""Finds references in manifests that lead nowhere: to accounts, roles, services, configuration, webhooks and pods."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

ROOT = Path(__file__).parents[3]
CLUSTER_SCOPED = {
    "Namespace",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingWebhookConfiguration",
}
# Made by a person or by the operator itself, never by the manifests.
GIVEN = {"nstance-cluster-ca", "nstance-operator-nonce", "nstance-operator-cert", "nstance-operator-key"}
_USER = re.compile(r"userInfo\.username != 'system:serviceaccount:' \+ request\.namespace \+ ':([a-z0-9.-]+)'")
_USER_LIKE = re.compile(
    r"startsWith\('system:serviceaccount:' \+ request\.namespace \+ ':'\).*username\.contains\('(.+?)'\)"
)


def parse(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document]


def broken_references(manifests: list[Manifest], namespace: str) -> list[str]:
    """One sentence for each. `namespace` is where everything has to be."""
    return sorted({*_misplaced(manifests, namespace), *_Graph(manifests, namespace).broken()})


def _misplaced(manifests: list[Manifest], namespace: str) -> Iterator[str]:
    seen = set()
    for manifest in manifests:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        found = manifest["metadata"].get("namespace")
        if kind in CLUSTER_SCOPED and found is not None:
            yield f"{kind} {name} is in the namespace {found}"
        if kind not in CLUSTER_SCOPED and found != namespace:
            yield f"{kind} {name} is in the namespace {found}, expected {namespace}"
        if kind == "Namespace" and name != namespace:
            yield f"Namespace {name}, expected {namespace}"
        if (kind, name) in seen:
            yield f"{kind} {name} is there twice"
        seen.add((kind, name))


class _Graph:
    def __init__(self, manifests: list[Manifest], namespace: str) -> None:
        self._manifests = manifests
        self._namespace = namespace
        self._known = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}

    def broken(self) -> Iterator[str]:
        for manifest in self._manifests:
            kind = manifest["kind"]
            who = f"{kind} {manifest['metadata']['name']}"
            for problem in getattr(self, f"_check_{kind.lower()}", self._check_nothing)(manifest):
                yield f"{who}: {problem}"

    def _missing(self, kind: str, name: str, namespace: str | None = None) -> Iterator[str]:
        if (kind, name) not in self._known and name not in GIVEN:
            yield f"no {kind} {name}"
        if namespace is not None and namespace != self._namespace:
            yield f"{kind} {name} in the namespace {namespace}"

    def _check_nothing(self, _: Manifest) -> Iterator[str]:
        yield from ()

    def _check_rolebinding(self, binding: Manifest) -> Iterator[str]:
        yield from self._missing(binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for subject in binding["subjects"]:
            yield from self._missing(subject["kind"], subject["name"], subject["namespace"])

    _check_clusterrolebinding = _check_rolebinding

    def _check_role(self, role: Manifest) -> Iterator[str]:
        kinds = {
            "serviceaccounts/token": "ServiceAccount",
            "validatingwebhookconfigurations": "ValidatingWebhookConfiguration",
        }
        for rule in role["rules"]:
            for name in rule.get("resourceNames", []):
                for resource in set(rule["resources"]) & set(kinds):
                    yield from self._missing(kinds[resource], name)

    _check_clusterrole = _check_role

    def _check_deployment(self, deployment: Manifest) -> Iterator[str]:
        spec = deployment["spec"]
        labels = spec["template"]["metadata"]["labels"]
        if not spec["selector"]["matchLabels"].items() <= labels.items():
            yield "its selector does not match its own pods"
        yield from self._check_pod({"spec": spec["template"]["spec"]})

    def _check_pod(self, pod: Manifest) -> Iterator[str]:
        spec = pod["spec"]
        if "serviceAccountName" in spec:
            yield from self._missing("ServiceAccount", spec["serviceAccountName"])
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                yield from self._missing("ConfigMap", volume["configMap"]["name"])
        for container in spec["containers"]:
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    yield f"no volume {mount['name']}"
            yield from self._check_options(container)

    def _check_job(self, job: Manifest) -> Iterator[str]:
        yield from self._check_pod({"spec": job["spec"]["template"]["spec"]})

    def _check_options(self, container: Manifest) -> Iterator[str]:
        """Names of objects in its flags and variables."""
        arguments = " ".join(map(str, container.get("args", [])))
        named = re.search(r"--webhook-configuration[ =](\S+)", arguments)
        if named is not None and "--disable-webhooks" not in arguments:
            yield from self._missing("ValidatingWebhookConfiguration", named[1])
        variables = {each["name"]: each.get("value") for each in container.get("env", [])}
        account = variables.get("NSTANCE_CAPI_SERVICEACCOUNT")
        if account and not variables.get("NSTANCE_CAPI_ENDPOINT"):
            yield from self._missing("ServiceAccount", account)

    def _check_validatingwebhookconfiguration(self, configuration: Manifest) -> Iterator[str]:
        accounts = {name for kind, name in self._known if kind == "ServiceAccount"}
        for hook in configuration["webhooks"]:
            yield from self._called(hook["clientConfig"]["service"])
            selected = hook["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
            if selected != self._namespace:
                yield f"guards the namespace {selected}"
            expression = next(
                each["expression"] for each in hook["matchConditions"] if each["name"] == "not-the-operator"
            )
            expression = re.sub(r"\s+", " ", expression)
            exact, like = _USER.search(expression), _USER_LIKE.search(expression)
            if not ((exact and exact[1] in accounts) or (like and any(like[1] in account for account in accounts))):
                yield f"spares no ServiceAccount of {sorted(accounts)}: {expression}"

    def _check_customresourcedefinition(self, definition: Manifest) -> Iterator[str]:
        conversion = definition["spec"].get("conversion", {})
        if conversion.get("strategy") == "Webhook":
            yield from self._called(conversion["webhook"]["clientConfig"]["service"])

    def _called(self, service: Manifest) -> Iterator[str]:
        yield from self._missing("Service", service["name"], service["namespace"])

    def _check_service(self, service: Manifest) -> Iterator[str]:
        pods = list(self._pods(service["spec"]["selector"]))
        if not pods:
            yield "its selector matches no pod"
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            for pod in pods:
                offered = [each for container in pod["spec"]["containers"] for each in container.get("ports", [])]
                if not any(target in (each["containerPort"], each["name"]) for each in offered):
                    yield f"no port {target} of its pods"

    def _check_poddisruptionbudget(self, budget: Manifest) -> Iterator[str]:
        if not list(self._pods(budget["spec"]["selector"]["matchLabels"])):
            yield "its selector matches no pod"

    def _check_networkpolicy(self, policy: Manifest) -> Iterator[str]:
        if not list(self._pods(policy["spec"]["podSelector"]["matchLabels"])):
            yield "its selector matches no pod"

    def _check_servicemonitor(self, monitor: Manifest) -> Iterator[str]:
        wanted = monitor["spec"]["selector"]["matchLabels"]
        services = [
            each
            for each in self._manifests
            if each["kind"] == "Service" and wanted.items() <= each["metadata"].get("labels", {}).items()
        ]
        for endpoint in monitor["spec"]["endpoints"]:
            ports = [
                port for each in services for port in each["spec"]["ports"] if port.get("name") == endpoint["port"]
            ]
            if len(ports) != 1:
                yield f"{len(ports)} Services with a port {endpoint['port']}"

    def _pods(self, labels: Manifest) -> Iterator[Manifest]:
        for manifest in self._manifests:
            if manifest["kind"] == "Deployment" and labels:
                template = manifest["spec"]["template"]
                if labels.items() <= template["metadata"]["labels"].items():
                    yield template
