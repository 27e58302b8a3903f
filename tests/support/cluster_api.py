"""Cluster API's own controllers and webhooks, beside the API server of `make test-kube`.

    with cluster_api.running(kubeconfig, namespace, dir) as manager: ...

The manager of Cluster API's core provider (`real_kube` has built it) runs as a process, for one namespace only, and its
webhooks are asked for that namespace only: the other tests, without Cluster API, use the same API server.
It has the rights that Cluster API's own manifests give it, and no others. The trap: its webhook server has no flag for an
address, so it listens on all of them; its port is a free one.
"""

import base64
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from support import real_kube

RBAC = "rbac.authorization.k8s.io"
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Manager:
    process: subprocess.Popen[bytes]
    log: Path

    def errors(self) -> list[str]:
        """Its error messages, each once."""
        lines = self.log.read_text(errors="replace").splitlines()
        return sorted({line.partition("] ")[2] for line in lines if line.startswith("E")})


@contextmanager
def running(kubeconfig: Path, namespace: str, work: Path, *, feature_gates: str = "") -> Iterator[Manager]:
    """Started, with its webhooks in place; ended by its own id, and the webhooks removed."""
    health, webhooks = real_kube.free_ports(2)
    certificate = _certificate(work)
    hooks = _hooks(namespace, webhooks, certificate)
    rights = _rights(namespace)
    for body in rights:
        real_kube.kubectl(kubeconfig, "apply", "-f", "-", given=json.dumps(body))
    log = work / "cluster-api.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [
                str(real_kube.CLUSTER_API_PROGRAM),
                f"--kubeconfig={_kubeconfig(kubeconfig, namespace, work)}",
                f"--namespace={namespace}",
                "--leader-elect=false",
                f"--webhook-port={webhooks}",
                f"--webhook-cert-dir={work}",
                f"--health-addr=127.0.0.1:{health}",
                "--diagnostics-address=0",
                "--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields",
                f"--feature-gates={feature_gates}",
            ],
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        _wait_ready(f"http://127.0.0.1:{health}/readyz", process, log)
        for body in hooks:
            real_kube.kubectl(kubeconfig, "apply", "-f", "-", given=json.dumps(body))
        yield Manager(process, log)
    finally:
        _remove(kubeconfig, hooks)  # first: with unreachable webhooks every write would fail
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _remove(kubeconfig, rights)


def _remove(kubeconfig: Path, bodies: list[dict[str, object]]) -> None:
    for body in bodies:
        real_kube.kubectl(kubeconfig, "delete", "--ignore-not-found", "-f", "-", given=json.dumps(body))


def _certificate(work: Path) -> bytes:
    """For the webhook server, of its own making."""
    subject = ("-subj", "/CN=webhooks", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(work / "tls.key"), "-out", str(work / "tls.crt"))
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    real_kube.run("openssl", "req", "-x509", *kind, *subject, *files)
    return (work / "tls.crt").read_bytes()


def _hooks(namespace: str, port: int, certificate: bytes) -> list[dict[str, object]]:
    """Cluster API's own webhook configurations, with an address in place of a Service."""
    manifests = real_kube.cluster_api_source() / "config" / "webhook" / "manifests.yaml"
    found = [body for body in yaml.safe_load_all(manifests.read_text()) if body]
    for body in found:
        body["metadata"]["name"] = f"{namespace}-{body['metadata']['name']}"
        for hook in body["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {
                "url": f"https://127.0.0.1:{port}{path}",
                "caBundle": base64.b64encode(certificate).decode(),
            }
            hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return found


def _rights(namespace: str) -> list[dict[str, object]]:
    """The rules of its own manifests, for a ServiceAccount of the namespace."""
    source = real_kube.cluster_api_source() / "config" / "rbac" / "role.yaml"
    role = next(each for each in yaml.safe_load_all(source.read_text()) if each and each["kind"] == "ClusterRole")
    name = f"{namespace}-capi"
    subject = {"kind": "ServiceAccount", "name": "capi-manager", "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "capi-manager", "namespace": namespace}},
        {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": role["rules"]},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        },
    ]


def _kubeconfig(admin: Path, namespace: str, work: Path) -> Path:
    """The manager is its ServiceAccount, not an administrator."""
    token = real_kube.kubectl(admin, "create", "token", "capi-manager", "-n", namespace, "--duration=2h").strip()
    content = json.loads(admin.read_text())
    content["users"] = [{"name": "test", "user": {"token": token}}]
    path = work / "cluster-api-kubeconfig"
    path.write_text(json.dumps(content))
    return path


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (OSError, urllib.error.HTTPError):
            pass
        if process.poll() is not None or time.monotonic() > give_up:
            raise real_kube.Failed(f"Cluster API did not become ready; its log ends with:\n{log.read_text()[-1500:]}")
        time.sleep(0.1)
