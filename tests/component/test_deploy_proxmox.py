"""The scripts of deploy/proxmox against fakepve: `pvesh` is a shim that passes its calls on to the stand-in's API."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nstance.providers.proxmox.preflight import DISK_RIGHTS, ISO_RIGHTS, VM_RIGHTS
from support import proxmox_stand_in
from support.proxmox_stand_in import StandIn

SCRIPTS = Path(__file__).parents[2] / "deploy" / "proxmox"
PVESH = """
import json, os, ssl, sys, urllib.error, urllib.parse, urllib.request
verb, path, *rest = sys.argv[1:]
flags = {rest[n].lstrip("-"): rest[n + 1] for n in range(0, len(rest), 2)}
flags.pop("output-format", None)
body = urllib.parse.urlencode(flags)
with open(os.environ["FAKEPVE_LOG"], "a") as log:
    log.write(json.dumps([verb, path, flags]) + "\\n")
lists = json.loads(os.environ["FAKEPVE_LISTS"])
if verb == "get" and path in lists:
    print(json.dumps(lists[path]))
    sys.exit()
method = {"get": "GET", "create": "POST", "set": "PUT", "delete": "DELETE"}[verb]
url = os.environ["FAKEPVE_URL"] + "/api2/json" + urllib.parse.quote(path)
if method in ("GET", "DELETE") and body:
    url, body = url + "?" + body, ""
request = urllib.request.Request(url, data=body.encode() if method in ("PUT", "POST") else None, method=method)
request.add_header("Cookie", "PVEAuthCookie=" + os.environ["FAKEPVE_TICKET"])
request.add_header("CSRFPreventionToken", os.environ["FAKEPVE_CSRF"])
try:
    with urllib.request.urlopen(request, context=ssl._create_unverified_context(), timeout=30) as answer:
        print(json.dumps(json.load(answer)["data"]))
except urllib.error.HTTPError as problem:
    sys.exit(f"{problem.code} {problem.reason} {problem.read().decode()}")
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[StandIn]:
    with proxmox_stand_in.cluster(tmp_path) as made:
        yield made


def run(
    script: str, folder: Path, stand_in: StandIn | None = None, **variables: str
) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], **variables}
    if stand_in is not None:
        (folder / "bin").mkdir(exist_ok=True)
        shim = folder / "bin" / "pvesh"
        shim.write_text(f"#!{sys.executable}\n{PVESH}")
        shim.chmod(0o755)
        environment |= {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "FAKEPVE_URL": f"https://127.0.0.1:{stand_in.port}",
            "FAKEPVE_TICKET": stand_in.ticket["ticket"],
            "FAKEPVE_CSRF": stand_in.ticket["token"],
            "FAKEPVE_LOG": str(folder / "calls.jsonl"),
            "FAKEPVE_LISTS": "{}",  # what the stand-in accepts and forgets: users, roles and tokens
            **variables,
        }
    command = ["sh", str(SCRIPTS / script)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=folder)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    scripts = sorted(SCRIPTS.glob("*.sh"))
    assert len(scripts) == 3
    done = subprocess.run(["shellcheck", *map(str, scripts)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_token_gets_exactly_the_rights_that_the_provider_needs() -> None:
    text = (SCRIPTS / "create-token.sh").read_text()
    for role, rights in (("VM", VM_RIGHTS), ("Disk", DISK_RIGHTS), ("Seed", ISO_RIGHTS)):
        line = next(line for line in text.splitlines() if line.startswith(f"role Nstance{role} "))
        assert set(line.split('"')[1].split()) == set(rights)


def changes(folder: Path) -> list[tuple[str, str, dict[str, str]]]:
    calls = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
    return [(verb, path, flags) for verb, path, flags in calls if verb != "get"]


def test_a_token_is_created_with_its_rights(stand_in: StandIn, tmp_path: Path) -> None:
    """Proxmox's own schema accepts every call."""
    done = run("create-token.sh", tmp_path, stand_in, POOL="")
    assert done.returncode == 0, done.stderr
    lines = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert lines["PROXMOX_TOKEN_ID"] == "nstance@pve!server"
    assert lines["PROXMOX_TOKEN_SECRET"]
    made = changes(tmp_path)
    assert [flags["roleid"] for verb, path, flags in made if path == "/access/roles"] == [
        "NstanceVM",
        "NstanceDisk",
        "NstanceSeed",
        "NstanceNode",
        "NstanceNet",
    ]
    assert {(flags["path"], flags["roles"]) for _, path, flags in made if path == "/access/acl"} == {
        ("/vms", "NstanceVM"),
        ("/storage/local-lvm", "NstanceDisk"),
        ("/storage/local", "NstanceSeed"),
        ("/nodes", "NstanceNode"),
        ("/sdn/zones", "NstanceNet"),
    }


def test_a_second_run_corrects_the_rights_and_keeps_the_token(stand_in: StandIn, tmp_path: Path) -> None:
    lists = {
        "/access/roles": [{"roleid": f"Nstance{name}"} for name in ("VM", "Disk", "Seed", "Node", "Net")],
        "/access/users": [{"userid": "nstance@pve"}],
        "/access/users/nstance@pve/token": [{"tokenid": "server"}],
    }
    done = run("create-token.sh", tmp_path, stand_in, FAKEPVE_LISTS=json.dumps(lists))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "exists already" in done.stderr
    assert {verb for verb, _, _ in changes(tmp_path)} == {"set"}


def test_a_template_is_built_once_and_not_over_another_vm(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.ask("PUT", "/storage/local", content="iso,import")
    settings = {"IMAGE_URL": "https://images.invalid/debian.qcow2", "NODE": "pve1", "NAME": "debian-13"}
    for _ in range(2):
        done = run("build-template.sh", tmp_path, stand_in, VMID="9100", **settings)
        assert done.returncode == 0, done.stderr
    made = [each for each in stand_in.ask("GET", "/cluster/resources", type="vm") if each["vmid"] == 9100]
    assert [(each["name"], bool(each["template"])) for each in made] == [("debian-13", True)]
    stand_in.ask("POST", "/nodes/pve1/qemu", vmid=9101, name="mine", memory=64)
    refused = run("build-template.sh", tmp_path, stand_in, VMID="9101", **settings)
    assert refused.returncode == 1
    assert "choose another VMID" in refused.stderr


def test_the_server_is_installed_from_a_package_whose_checksum_matches(tmp_path: Path) -> None:
    program = tmp_path / "nstance-server"
    program.write_text("#!/bin/sh\n")
    package = tmp_path / "server.tar.gz"
    with tarfile.open(package, "w:gz") as archive:
        archive.add(program, "nstance-server/bin/nstance-server")
    checksum = hashlib.sha256(package.read_bytes()).hexdigest()
    root = tmp_path / "root"
    settings = {
        "ROOT": str(root),
        "PACKAGE_URL": package.as_uri(),
        "SHARD": "rack-1",
        "BUCKET": "state",
        "PROXMOX_TOKEN_ID": "nstance@pve!server",
        "PROXMOX_TOKEN_SECRET": "s3cret",
    }
    refused = run("install-server.sh", tmp_path, PACKAGE_SHA256="0" * 64, **settings)
    assert refused.returncode == 1
    assert not (root / "usr/local/lib/nstance-server").exists()
    for _ in range(2):
        done = run("install-server.sh", tmp_path, PACKAGE_SHA256=checksum, **settings)
        assert done.returncode == 0, done.stderr
    assert (root / "usr/local/lib/nstance-server/bin/nstance-server").exists()
    secrets = root / "etc/nstance-server.env"
    assert "PROXMOX_TOKEN_SECRET=s3cret" in secrets.read_text()
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    unit = (root / "etc/systemd/system/nstance-server.service").read_text()
    assert "--shard rack-1 --storage s3 --bucket state" in unit
    assert "s3cret" not in unit
    assert [each.name for each in (root / "usr/local/lib").iterdir()] == ["nstance-server"], "nothing is left"
