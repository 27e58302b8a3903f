"""Which wheels go into the bundles."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from scripts import build_bundle


@pytest.mark.parametrize("arch", build_bundle.MACHINES)
def test_wheels_for_any_glibc_up_to_the_oldest_supported_one_are_taken(arch: str, tmp_path: Path) -> None:
    names = {minor: f"for_glibc_2_{minor}" for minor in (17, 24, 26, 28, 29)}
    for minor, name in names.items():
        wheel(tmp_path, name, f"cp311-abi3-manylinux_2_{minor}_{build_bundle.MACHINES[arch]}")
    taken = {minor for minor, name in names.items() if can_download(name, tmp_path, arch)}
    assert taken == {17, 24, 26, 28}


def wheel(folder: Path, name: str, tags: str) -> None:
    with zipfile.ZipFile(folder / f"{name}-1-{tags}.whl", "w") as archive:
        archive.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        archive.writestr(f"{name}-1.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tags}\n")


def can_download(name: str, folder: Path, arch: str) -> bool:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-index", "--no-deps", f"--find-links={folder}"]
    command += [f"--dest={folder / 'out'}", *build_bundle.wheels_for(arch), name]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
