"""Generates the CRDs in `config/crd` and the files that the Helm charts share with `config`.

`--check` only compares, for `make lint`.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from nstance.kube import crds

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm"
CRD_CHART = ROOT / "deploy" / "helm-crds"


def _yaml(document: object) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=120)


def _kept(definition: dict[str, Any]) -> dict[str, Any]:
    """Helm does not delete it: with a definition, all its objects would go."""
    annotations = {"helm.sh/resource-policy": "keep"}
    return {**definition, "metadata": {**definition["metadata"], "annotations": annotations}}


def generated() -> dict[Path, str]:
    definitions = {f"{kind.group}_{kind.plural}.yaml": _yaml(crds.definition(kind)) for kind in crds.KINDS}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"bases/{name}" for name in definitions],
    }
    roles = {
        f"{document['kind']}/{document['metadata']['name']}": document["rules"]
        for document in yaml.safe_load_all((ROOT / "config/rbac/role.yaml").read_text())
    }
    files = {ROOT / "config/crd/bases" / name: text for name, text in definitions.items()}
    files |= {CHART / "crds" / name: text for name, text in definitions.items()}
    for kind in crds.KINDS:
        files[CRD_CHART / "templates" / f"{kind.plural}.yaml"] = _yaml(_kept(crds.definition(kind)))
    files[ROOT / "config/crd/kustomization.yaml"] = _yaml(kustomization)
    files[CHART / "files/rules.yaml"] = _yaml(roles)
    return files


def main() -> int:
    files = generated()
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    folders = {path.parent for path in files if path.name != "kustomization.yaml"}
    extra = [path for folder in sorted(folders) if folder.exists() for path in folder.iterdir() if path not in files]
    if "--check" in sys.argv:
        for path in stale + extra:
            sys.stderr.write(f"{path.relative_to(ROOT)} is out of date: run 'make manifests'\n")
        return 1 if stale or extra else 0
    for path in extra:
        path.unlink()
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
