"""helm and clusterctl for `make test-charts`: from the path, or built once by Go into the user's cache directory.

    PYTHONPATH=tests python -m support.go_programs pytest tests/component/packaging

builds what is missing (some minutes each) and runs the command. Tests only look for the programs and are skipped without
them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support import real_kube

HELM = "3.19.5"
CACHE = real_kube.CACHE.parent / "bin"


def find(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), str(CACHE)]))


def is_missing(program: str) -> str:
    return f"{program} is not installed: run 'make test-charts', which builds it"


def module_folder(name: str, version: str) -> Path | None:
    """The directory of a Go module, if it was downloaded before."""
    root = Path(os.environ.get("GOMODCACHE") or Path(os.environ.get("GOPATH") or Path.home() / "go") / "pkg" / "mod")
    found = root / f"{name}@v{version}"
    return found if found.is_dir() else None


def build() -> None:
    if find("helm") is None:
        print("test-charts: building helm (once; several minutes)", file=sys.stderr, flush=True)
        environment = {**os.environ, "GOBIN": str(CACHE)}
        subprocess.run(["go", "install", f"helm.sh/helm/v3/cmd/helm@v{HELM}"], env=environment, check=True)
    if find("clusterctl") is None:
        print("test-charts: building clusterctl (once; several minutes)", file=sys.stderr, flush=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", f"{CACHE}/clusterctl", "./cmd/clusterctl"]
        subprocess.run(command, cwd=real_kube.cluster_api_source(), check=True)


if __name__ == "__main__":
    if shutil.which("go") is None and not (find("helm") and find("clusterctl")):
        sys.exit("test-charts: helm or clusterctl is missing, and so is Go, which builds them")
    build()
    sys.exit(subprocess.run(sys.argv[1:], check=False).returncode)
