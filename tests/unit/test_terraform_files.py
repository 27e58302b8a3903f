"""What can be checked of the Terraform modules without Terraform: their docs, and the user data of servers."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from scripts import terraform_docs

from nstance.config import load

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


@pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
def test_the_shard_module_for_proxmox_renders_a_valid_configuration(tmp_path: Path) -> None:
    """Only what needs no provider is applied: the variables, the first locals, and the output."""
    module = ROOT / "deploy" / "terraform" / "proxmox" / "shard"
    folder = tmp_path / "deploy" / "terraform" / "proxmox" / "shard"
    folder.mkdir(parents=True)
    shutil.copytree(ROOT / "deploy" / "proxmox", tmp_path / "deploy" / "proxmox")
    shutil.copy(module / "variables.tf", folder)
    rendered_locals = (module / "main.tf").read_text().partition('\nresource "')[0]
    output = (module / "outputs.tf").read_text().partition('\noutput "servers"')[0]
    userdata = '\noutput "userdata" {\n  value     = yamlencode(local.userdata)\n  sensitive = true\n}\n'
    (folder / "main.tf").write_text(rendered_locals + output + userdata)
    values = {
        "cluster": {
            "template_name": "debian",
            "template_vmids": {"pve1": 9000},
            "disk_storages": ["ceph"],
            "iso_storage": "local",
            "pool": "nstance",
            "token_id": "nstance@pve!server",
        },
        "cluster_id": "demo",
        "shard_id": "rack-1",
        "api_url": "https://pve1.internal:8006",
        "ca_certificate": "-----BEGIN CERTIFICATE-----",
        "server_nodes": ["pve1"],
        "server_package": {"url": "https://files.internal/s.tar.gz", "sha256": "0" * 64},
        "bucket": "state",
        "environment": {"PROXMOX_TOKEN_SECRET": "s3cret"},
        "options": {"memory_overcommit": 1.2},
        "load_balancers": {"front": {"provider": "webhook", "url": "https://lb.internal/members", "secret": "front"}},
        "templates": {"web": {"kind": "web", "instance_type": "cpu:1,memory:1024"}},
        "groups": {"default": {"web": {"template": "web", "size": 3, "load_balancers": ["front"]}}},
    }
    (folder / "terraform.tfvars.json").write_text(json.dumps(values))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CHECKPOINT_DISABLE": "1"}

    def run(*words: str) -> str:
        done = subprocess.run(
            ["terraform", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("init", "-input=false", "-no-color")
    run("apply", "-auto-approve", "-input=false", "-no-color")
    settings = load.load(run("output", "-raw", "config"))
    assert settings.shard.infra.options["pool"] == "nstance"
    assert settings.defaults.args == {"TemplateName": "debian", "StoragePool": ["ceph"]}
    files = {each["path"]: each["content"] for each in yaml.safe_load(run("output", "-raw", "userdata"))["write_files"]}
    assert files["/etc/nstance-server.env"] == "PROXMOX_TOKEN_SECRET=s3cret\n"
    assert files["/usr/local/sbin/install-nstance-server"].startswith("#!/bin/sh")
