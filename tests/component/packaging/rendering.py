"""Manifests as each packager makes them: kustomize, Helm, and the repository for clusterctl."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from component.packaging.references import ROOT, Manifest, parse
from support import go_programs, real_kube
from support.k8s_server import KUBECTL

HELM = go_programs.find("helm")
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

SHARDS = '{"dev-1": {"registration_addr": "10.0.0.1:8992", "operator_addr": "10.0.0.1:8993"}}'
VARIABLES = {"NSTANCE_CLUSTER_ID": "example-cluster", "NSTANCE_SHARDS": SHARDS}
TOPOLOGY = {
    "KUBERNETES_VERSION": "v1.34.4",
    "NSTANCE_SHARD_NAMES": "[dev-1, dev-2]",
    "WORKER_MACHINE_COUNT": "3",
}
FLAVORS = ("aws", "google", "proxmox", "development")


def run(*command: str | Path, fails: bool = False, given: str = "", environment: dict[str, str] | None = None) -> str:
    """What it prints; with `fails`, what it complains."""
    done = subprocess.run(
        command, input=given, text=True, capture_output=True, env=environment, timeout=300, check=False
    )
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def kustomize(folder: Path) -> list[Manifest]:
    assert KUBECTL is not None
    return parse(run(KUBECTL, "kustomize", folder))


def overlay(folder: Path, settings: dict[str, object], base: Path = ROOT / "config/default") -> Path:
    """kustomize takes only relative paths of directories."""
    folder.mkdir()
    content = {"resources": [os.path.relpath(base, folder)], **settings}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return folder


def helm(*arguments: str | Path, fails: bool = False) -> str:
    assert HELM is not None
    if arguments[0] in ("template", "lint"):  # a helm that Go built without flags thinks of an old Kubernetes
        arguments = (*arguments, "--kube-version", real_kube.KUBERNETES)
    return run(HELM, *arguments, fails=fails)


def chart(
    folder: Path,
    values: dict[str, Any],
    *,
    namespace: str = "tenant-a",
    name: str = "nstance-operator",
    fails: bool = False,
) -> str:
    """A release with these values instead of the minimal ones."""
    path = folder / "values.yaml"
    path.write_text(json.dumps({**MINIMAL, **values}))
    return helm("template", name, CHART, "--namespace", namespace, "--values", path, fails=fails)


def clusterctl_release(folder: Path) -> Path:
    """The directory of the release in a repository that is built there."""
    run(sys.executable, ROOT / "scripts" / "build_clusterctl.py", folder)
    [found] = (folder / "infrastructure-nstance").iterdir()
    return found


def substitute(text: str, variables: dict[str, str]) -> str:
    """As clusterctl does it; the tests with the real program check that."""

    def value(match: re.Match[str]) -> str:
        found = variables.get(match[1]) or match[2]
        assert found, f"{match[1]} is required"  # also if its default is empty
        return found

    return re.sub(r"\$\{(\w+)(?::=([^}]*))?\}", value, text)
