"""The guest of `make vm-image` without a VM: its imports exist among the packages that are copied into its image."""

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_guest_imports_only_what_its_image_has(tmp_path: Path) -> None:
    script = (ROOT / "scripts" / "build-vm-image.sh").read_text()
    found = re.search(r"^for part in (.*); do\n  cp -R", script, re.MULTILINE)
    assert found is not None
    (tmp_path / "nstance").mkdir()
    for part in found[1].split():
        source = ROOT / "src" / "nstance" / part
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, tmp_path / "nstance" / part)
    imports = [
        ast.unparse(each)
        for each in ast.walk(ast.parse((ROOT / "deploy" / "vm" / "guest.py").read_text()))
        if isinstance(each, ast.Import | ast.ImportFrom) and "nstance" in ast.unparse(each)
    ]
    assert len(imports) > 3
    paths = [str(tmp_path), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    code = "\n".join([f"import sys; sys.path[:0] = {paths!r}", *imports])
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
