"""The Terraform modules for Google Cloud: formatted, parsed, and in step with what the server needs.

They are not validated by Terraform itself: that needs the Google provider, which is not a part of this repository's tests.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nstance.providers.gcp.preflight import PERMISSIONS

MODULES = Path(__file__).parents[2] / "deploy/terraform/google"


def text(module: str) -> str:
    return "\n".join(path.read_text() for path in sorted((MODULES / module).glob("*.tf")))


def test_the_modules_are_formatted_and_can_be_parsed() -> None:
    if shutil.which("terraform") is None:
        pytest.skip("needs the program terraform: install it")
    done = subprocess.run(
        ["terraform", "fmt", "-check", "-diff", "-recursive", str(MODULES)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("module", ["cluster", "shard", "examples/minimal"])
def test_variables_are_declared_and_used(module: str) -> None:
    found = text(module)
    used = set(re.findall(r"\bvar\.([a-z_]+)", found))
    assert used == set(re.findall(r'^variable "([a-z_]+)"', found, re.MULTILINE))
    named = set(re.findall(r"\b(google_[a-z_]+\.[a-z_]+)\.", found))
    assert named <= {".".join(pair) for pair in re.findall(r'^resource "([a-z_]+)" "([a-z_]+)"', found, re.MULTILINE)}


def test_an_example_gives_modules_what_they_need() -> None:
    example = text("examples/minimal")
    for module in ("cluster", "shard"):
        blocks = re.split(r'^variable "', text(module), flags=re.MULTILINE)[1:]
        needed = {block.partition('"')[0] for block in blocks if not re.search(r"^  default", block, re.MULTILINE)}
        given = example.partition(f'module "{module}" {{')[2].partition("\n}\n")[0]
        assert needed <= set(re.findall(r"^  ([a-z_]+)\s+=", given, re.MULTILINE))


def test_the_role_has_the_permissions_that_the_server_checks() -> None:
    assert set(PERMISSIONS) <= set(re.findall(r'"(compute\.[A-Za-z.]+)"', text("cluster")))


def test_the_script_is_valid_shell() -> None:
    script = (MODULES / "shard/templates/server.sh").read_text()
    rendered = re.sub(r"%{[^}]*}\n?", "", re.sub(r"(?<!\$)\${[a-z0-9_]+}", "x", script)).replace("$${", "${")
    subprocess.run(["sh", "-n"], input=rendered, text=True, check=True)
