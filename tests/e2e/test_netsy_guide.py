"""The Netsy guide: its certificates, template and group blocks, as printed there, deliver what it promises (with openssl)."""

import json
import shutil
import stat
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from e2e.processes import ShardWorld, settings, shard_world
from nstance.config import jsonc
from support.eventually import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "config-netsy.jsonc"
openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program (package openssl)")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ShardWorld]:
    with shard_world(tmp_path) as made:
        quick = settings(made)
        guide = jsonc.read(EXAMPLE.read_text(), source="guide").value
        assert isinstance(guide, dict)
        # The guide's blocks stay as they are; only where the servers listen and instances live is this test's.
        server = guide["server"]
        server["provider"] = {"kind": "process", "options": {"dir": str(made.instances_dir)}}
        server["bind"], server["advertise"] = quick["shard"]["bind"], quick["shard"]["advertise"]
        made.configure(guide)
        yield made


def show(certificate: Path, *fields: str) -> str:
    return subprocess.run(
        ["openssl", "x509", "-in", str(certificate), "-noout", *fields], capture_output=True, text=True, check=True
    ).stdout


@openssl
def test_the_guide_as_printed(world: ShardWorld) -> None:
    world.start("a")
    running = wait_for("three nodes run", world.running(3))
    for id in running:
        home = world.home_of(id)
        wait_for("its files are there", partial(has_files, home))
        ca = home / "identity" / "ca.crt"
        for name, purpose in (("server.crt", "sslserver"), ("peer.crt", "sslclient")):
            certificate = home / "recv" / name
            verified = subprocess.run(
                ["openssl", "verify", "-CAfile", str(ca), "-purpose", purpose, str(certificate)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert verified.returncode == 0, verified.stderr
            alternatives = show(certificate, "-ext", "subjectAltName")
            assert f"URI:netsy://my-cluster/peer/{id}" in alternatives
            assert id in show(certificate, "-subject")
        server = show(home / "recv" / "server.crt", "-ext", "subjectAltName")
        for expected in ("DNS:localhost", "IP Address:127.0.0.1", "IP Address:0:0:0:0:0:0:0:1"):
            assert expected in server
        assert f'NETSY_NODE_ID="{id}"' in (home / "recv" / "netsy.env").read_text()
        assert json.loads((home / "recv" / "config.jsonc").read_text())["replication"]["quorum"] == -1
        assert_keys_stay(home)


def has_files(home: Path) -> bool:
    return all((home / "recv" / name).exists() for name in ("server.crt", "peer.crt", "netsy.env", "config.jsonc"))


def assert_keys_stay(home: Path) -> None:
    """A private key fits its certificate, and exists nowhere else."""
    for name, certificate in (("netsy.server", "server.crt"), ("netsy.peer", "peer.crt")):
        key = home / "keys" / f"{name}.key"
        assert stat.S_IMODE(key.stat().st_mode) & 0o007 == 0
        public = subprocess.run(
            ["openssl", "pkey", "-in", str(key), "-pubout"], capture_output=True, text=True, check=True
        ).stdout
        assert public.strip() == show(home / "recv" / certificate, "-pubkey").strip()
        secret = key.read_text().splitlines()[1]
        everywhere = [p for p in home.parents[1].rglob("*") if p.is_file() and secret in p.read_text(errors="replace")]
        assert everywhere == [key]
