"""What can be checked of the Terraform modules without Terraform: their docs, and the user data of servers."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from scripts import terraform_docs

ROOT = Path(__file__).parents[2]
AWS = ROOT / "deploy" / "terraform" / "aws"
_STATEMENT = re.compile(r'Sid\s+= "(\w+)"\s+Action\s+= \[([^\]]*)\]')
_ROW = re.compile(r"^\| `(\w+)` \| `([\w:]+)` \|", re.MULTILINE)


def test_the_page_of_permissions_lists_exactly_those_of_the_policy() -> None:
    statements = _STATEMENT.findall((AWS / "cluster" / "roles.tf").read_text())
    granted = {(sid, action) for sid, actions in statements for action in re.findall(r'"([^"]+)"', actions)}
    rows = _ROW.findall((ROOT / "docs" / "aws-permissions.md").read_text())
    assert len(granted) > 20
    assert set(rows) == granted
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("module", terraform_docs.MODULES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_readmes_list_inputs_and_outputs(module: Path) -> None:
    assert (module / "README.md").read_text() == terraform_docs.generated(module)


def rendered() -> str:
    text = (AWS / "shard" / "templates" / "server.sh").read_text()
    text = re.sub(r"%\{ (for|if|endfor|endif).*?~?\}", "", text)
    values = {"package_url": "https://x/s?y", "sha256": "0" * 64, "name": "A", "value": "b", "shard": "one"}
    values |= {"bucket": "state", "key_prefix": "p/", "log_group": "/nstance/a"}
    for name, value in values.items():
        text = text.replace("${" + name + "}", value)
    return text.replace("$${", "${")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing_in_the_servers_userdata(tmp_path: Path) -> None:
    script = tmp_path / "server.sh"
    script.write_text(rendered())
    done = subprocess.run(["shellcheck", "--shell=sh", str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
def test_the_modules_are_formatted() -> None:
    command = ["terraform", "fmt", "-check", "-recursive", str(AWS.parent)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == ""


@pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
@pytest.mark.parametrize("name", ["minimal", "production"])
def test_the_examples_for_proxmox_load_with_their_modules(tmp_path: Path, name: str) -> None:
    """Without the provider's plugin, which may not be reachable: make test-terraform validates where it is."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    example = tmp_path / "deploy" / "terraform" / "proxmox" / "examples" / name
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CHECKPOINT_DISABLE": "1"}
    for command in ("get", "providers"):
        done = subprocess.run(
            ["terraform", command, "-no-color"] if command == "get" else ["terraform", command],
            cwd=example,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.count("bpg/proxmox") == 3  # the example and both modules


def test_the_module_and_the_script_grant_the_same_rights_on_proxmox() -> None:
    module = (ROOT / "deploy" / "terraform" / "proxmox" / "cluster" / "main.tf").read_text()
    script = (ROOT / "deploy" / "proxmox" / "create-token.sh").read_text()
    granted = dict(re.findall(r'^role (\w+) "([^"]+)"', script, re.MULTILINE))
    assert len(granted) == 5
    for role, rights in granted.items():
        found = re.search(rf"{role}\s+= (?:concat\(\s*)?\[([^\]]*)\]", module)
        assert found is not None, role
        assert set(re.findall(r'"([\w.]+)"', found[1])) == set(rights.split())
