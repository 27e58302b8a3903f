"""Builds a repository for clusterctl: `dist/clusterctl`, with the operator's components and the cluster templates.

    python scripts/build_clusterctl.py [FOLDER]

The components come from `config/` by kustomize, so they cannot differ from it. `clusterctl.yaml` beside them names the
repository: `clusterctl --config dist/clusterctl/clusterctl.yaml generate provider --infrastructure nstance`.
"""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "deploy" / "clusterctl"
PROVIDER = "infrastructure-nstance"
COMPONENTS = "infrastructure-components.yaml"


def version() -> str:
    return f"v{tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}"


def build(folder: Path) -> Path:
    """Returns the directory of the release."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise SystemExit("clusterctl: kubectl is missing; its kustomize builds the components")
    command = [kubectl, "kustomize", str(SOURCE / "components")]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"clusterctl: failed to build the components: {done.stderr.strip()}")
    release = folder / PROVIDER / version()
    shutil.rmtree(folder / PROVIDER, ignore_errors=True)
    release.mkdir(parents=True)
    (release / COMPONENTS).write_text(done.stdout)
    for path in sorted(SOURCE.glob("*.yaml")):
        shutil.copyfile(path, release / path.name)
    provider = {"name": "nstance", "type": "InfrastructureProvider", "url": (release / COMPONENTS).resolve().as_uri()}
    (folder / "clusterctl.yaml").write_text(yaml.safe_dump({"providers": [provider]}, sort_keys=False))
    return release


if __name__ == "__main__":
    release = build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / "clusterctl")
    sys.stdout.write(f"built {release}\n")
