"""The Terraform modules for Google Cloud: formatted, parsed, and in step with what the server needs.

They are not validated by Terraform itself: that needs the Google provider, which is not a part of this repository's tests.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nstance.config import load
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


@pytest.mark.parametrize("module", ["cluster", "shard", "examples/minimal", "examples/production"])
def test_variables_are_declared_and_used(module: str) -> None:
    found = text(module)
    used = set(re.findall(r"\bvar\.(\w+)", found))
    assert used == set(re.findall(r'^variable "(\w+)"', found, re.MULTILINE))
    named = set(re.findall(r"\b(google_[a-z_]+\.[a-z_]+)\.", found))
    assert named <= {".".join(pair) for pair in re.findall(r'^resource "([a-z_]+)" "([a-z_]+)"', found, re.MULTILINE)}


@pytest.mark.skipif(shutil.which("terraform") is None, reason="needs the program terraform: install it")
@pytest.mark.parametrize("name", ["minimal", "production"])
def test_the_examples_load_with_their_modules(tmp_path: Path, name: str) -> None:
    """Without the provider's plugin: make test-terraform validates where it is."""
    shutil.copytree(MODULES, tmp_path / "google")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CHECKPOINT_DISABLE": "1"}
    for command in ("get", "providers"):
        done = subprocess.run(
            ["terraform", command],
            cwd=tmp_path / "google" / "examples" / name,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.count("hashicorp/google") >= 2  # of both modules


@pytest.mark.parametrize("name", ["minimal", "production"])
def test_an_example_gives_modules_what_they_need(name: str) -> None:
    example = text(f"examples/{name}")
    for module in ("cluster", "shard"):
        blocks = re.split(r'^variable "', text(module), flags=re.MULTILINE)[1:]
        needed = {block.partition('"')[0] for block in blocks if not re.search(r"^  default", block, re.MULTILINE)}
        given = example.partition(f'module "{module}" {{')[2].partition("\n}\n")[0]
        assert needed <= set(re.findall(r"^  ([a-z_]+)\s+=", given, re.MULTILINE))


@pytest.mark.skipif(shutil.which("terraform") is None, reason="needs the program terraform: install it")
def test_the_shard_of_the_production_example_has_a_valid_configuration(tmp_path: Path) -> None:
    """Only what needs no provider is applied: the variables and the configuration."""
    shutil.copy(MODULES / "shard" / "variables.tf", tmp_path)
    locals_of_shard = (MODULES / "shard" / "main.tf").read_text().partition('\nresource "')[0]
    example = text("examples/production").partition('module "shard" {')[2]
    settings = example.partition("  settings = {")[2].partition("\n  }\n")[0]
    for name, value in (
        ("module.cluster.cluster.agent_account", '"w@p"'),
        ("var.agent_sha256", "{ amd64 = local.sum }"),
    ):
        settings = settings.replace(name, value)
    settings = settings.replace("${var.cluster_id}", "demo")
    (tmp_path / "main.tf").write_text(
        locals_of_shard.replace("var.settings,", "local.settings,")
        + f'\nlocals {{\n  sum = "{"0" * 64}"\n  settings = {{{settings}\n  }}\n}}\n'
        + '\noutput "config" {\n  value = jsonencode(local.config)\n}\n'
    )
    accounts = {"server_account": "s@p", "agent_account": "w@p", "encryption_key_secret": "key"}
    values = {
        "cluster": {"id": "demo", "project_id": "my-project", "bucket": "state", **accounts},
        "shard_id": "europe-west1-b",
        "zone": "europe-west1-b",
        "network": "main",
        "server_subnetwork": "servers",
        "subnet_pools": {"main": ["workers-a", "workers-b"]},
        "server_package": {"url": "https://files.internal/s.tar.gz", "sha256": "0" * 64},
        "leader_ip": "10.0.0.250",
    }
    (tmp_path / "terraform.tfvars.json").write_text(json.dumps(values))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CHECKPOINT_DISABLE": "1"}

    def run(*words: str) -> str:
        done = subprocess.run(
            ["terraform", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("init", "-input=false", "-no-color")
    run("apply", "-auto-approve", "-input=false", "-no-color")
    settings_of_shard = load.load(run("output", "-raw", "config"))
    assert settings_of_shard.shard.infra.options == {"project_id": "my-project"}
    assert settings_of_shard.templates["worker"].args["ServiceAccount"] == "w@p"


def test_the_role_has_the_permissions_that_the_server_checks() -> None:
    assert set(PERMISSIONS) <= set(re.findall(r'"(compute\.[A-Za-z.]+)"', text("cluster")))


def test_the_script_is_valid_shell() -> None:
    script = (MODULES / "shard/templates/server.sh").read_text()
    rendered = re.sub(r"%{[^}]*}\n?", "", re.sub(r"(?<!\$)\${[a-z0-9_]+}", "x", script)).replace("$${", "${")
    subprocess.run(["sh", "-n"], input=rendered, text=True, check=True)
