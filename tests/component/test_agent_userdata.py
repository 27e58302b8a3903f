"""The userdata script as the server renders it, run with the system's places moved into a directory."""

import hashlib
import os
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from nstance import gotemplate
from nstance.agent import settings
from nstance.clock import SystemRng
from nstance.config.checks import provider_rules
from nstance.model.ids import ClusterId, GroupName, InstanceId, ShardId, TenantId
from nstance.pki import keys, nonce
from nstance.pki.ca import new_ca

SCRIPT = Path(__file__).parents[2] / "deploy" / "userdata" / "agent.sh"
URL = "https://example.com/agent.pyz"
SHELLS = [shell for shell in ("sh", "bash", "dash") if shutil.which(shell)]
AGENT = """#!/bin/sh
[ "$1" != --version ] || { echo nstance-agent 1.2.3; exit; }
echo agent "$@" >> "$NOTES"
"""
CA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def render(*, provider: str = "gcp", url: str = URL, sha256: str = "", version: str = "", **vars: str) -> str:
    data: dict[str, Any] = {
        "Cluster": {"ID": "c1", "CACert": CA},
        "Server": {"Shard": "s1", "RegistrationAddr": "10.0.0.1:8992,10.0.0.2:8992", "AgentAddr": "10.0.0.1:8994"},
        "Provider": {"Kind": provider, "Region": "r", "Zone": "z"},
        "Instance": {
            "ID": "etc-01jw51srryegh9snf9cmeh3k4q",
            "Kind": "etc",
            "Hostname": "",
            "FQDN": "",
            "Arch": "amd64",
            "Type": "t",
            "IP4": "",
            "IP6": "",
        },
        "Vars": vars,
        "Image": {},
        "Nonce": "head.body.tail",
        "Agent": {"URL": url, "SHA256": sha256, "Version": version},
    }
    return gotemplate.render(SCRIPT.read_text(), data)


class Machine:
    """A place to run the script in: its own root, a network with one file, and a systemd that takes notes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for directory in ("opt", "etc/systemd/system", "usr/local/bin", "bin", "dev"):
            (root / directory).mkdir(parents=True)
        (root / "download").write_text(AGENT)
        self.stub("curl", 'while [ "$1" != -o ]; do shift; done; cat "$DOWNLOAD" > "$2"')
        self.stub("systemctl", 'echo systemctl "$@" >> "$NOTES"')
        self.stub("journalctl", "echo the nonce is rejected")
        self.stub("sleep", "")

    def stub(self, name: str, body: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run(self, script: str, *, shell: str = "sh") -> subprocess.CompletedProcess[str]:
        for place in ("/opt/nstance-agent", "/etc/nstance-agent.env", "/usr/local", "/dev/console"):
            script = script.replace(place, f"{self.root}{place}")
        environment = {
            "PATH": f"{self.root}/bin:/usr/bin:/bin",
            "NOTES": str(self.root / "notes"),
            "DOWNLOAD": str(self.root / "download"),
        }
        return subprocess.run([shell, "-c", script], env=environment, capture_output=True, text=True, timeout=30)

    @property
    def notes(self) -> list[str]:
        path = self.root / "notes"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def console(self) -> str:
        path = self.root / "dev/console"
        return path.read_text() if path.exists() else ""

    @property
    def agent(self) -> Path:
        return self.root / "usr/local/bin/nstance-agent"

    @property
    def identity(self) -> Path:
        return self.root / "opt/nstance-agent/identity"

    def environment(self) -> list[str]:
        return (self.root / "etc/nstance-agent.env").read_text().splitlines()

    def offer_bundle(self) -> None:
        folder = self.root / "build/nstance-agent/bin"
        folder.mkdir(parents=True)
        (folder / "nstance-agent").write_text(AGENT)
        (folder / "nstance-agent").chmod(0o755)
        with tarfile.open(self.root / "download", "w:gz") as archive:
            archive.add(self.root / "build/nstance-agent", "nstance-agent")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
def test_installs_writes_nonce_and_ca_starts_and_waits(machine: Machine, shell: str) -> None:
    done = machine.run(render(OnReceive='sh -c "echo $HOME"', WaitTimeout="2m"), shell=shell)
    assert done.returncode == 0, done.stderr
    assert (machine.identity / "nonce.jwt").read_text() == "head.body.tail"
    assert (machine.identity / "ca.crt").read_text() == CA
    assert machine.identity.stat().st_mode & 0o777 == 0o700
    environment = machine.environment()
    assert 'NSTANCE_SERVER_REGISTRATION_ADDR="10.0.0.1:8992,10.0.0.2:8992"' in environment
    assert 'NSTANCE_INSTANCE_ID="etc-01jw51srryegh9snf9cmeh3k4q"' in environment
    assert "NSTANCE_PROVIDER=google" in environment
    assert 'NSTANCE_ON_RECEIVE="sh -c \\"echo $HOME\\""' in environment
    assert machine.notes == [
        f"agent install-units --program {machine.agent}",
        "systemctl daemon-reload",
        "systemctl enable --now nstance-agent.service nstance-agent-shutdown.service",
        "agent wait --timeout 2m",
    ]
    assert machine.console == ""


def test_a_bundle_is_unpacked_and_linked(machine: Machine) -> None:
    machine.offer_bundle()
    checksum = hashlib.sha256((machine.root / "download").read_bytes()).hexdigest()
    done = machine.run(render(sha256=checksum))
    assert done.returncode == 0, done.stderr
    assert machine.agent.resolve() == machine.root / "usr/local/lib/nstance-agent/bin/nstance-agent"
    assert os.access(machine.agent, os.X_OK)
    assert [path.name for path in (machine.root / "usr/local/lib").iterdir()] == ["nstance-agent"]
    assert machine.notes[-1] == "agent wait --timeout 5m"


@pytest.mark.parametrize("version", ["", "1.2.3"])
def test_the_agent_of_the_image_is_used(machine: Machine, version: str) -> None:
    machine.stub("nstance-agent", AGENT)
    machine.stub("curl", "exit 22")
    done = machine.run(render(version=version))
    assert done.returncode == 0, done.stderr
    assert machine.notes[0] == f"agent install-units --program {machine.root}/bin/nstance-agent"
    assert not machine.agent.exists()


def test_the_agent_of_the_image_is_not_used_if_it_has_another_version(machine: Machine) -> None:
    machine.stub("nstance-agent", AGENT.replace("1.2.3", "1.0.0"))
    done = machine.run(render(version="1.2.3"))
    assert done.returncode == 0, done.stderr
    assert machine.notes[0] == f"agent install-units --program {machine.agent}"
    assert "found nstance-agent 1.0.0, expected version 1.2.3" in done.stderr


@pytest.mark.parametrize("kind", sorted(provider_rules.RULES))
def test_every_providers_instances_get_an_environment_that_the_agent_takes(machine: Machine, kind: str) -> None:
    assert machine.run(render(provider=kind)).returncode == 0
    lines = machine.environment()
    configured = settings.read({name: shlex.split(value)[0] for name, value in (line.split("=", 1) for line in lines)})
    assert (configured.provider is None) == provider_rules.RULES[kind].local


def test_a_registered_instance_gets_no_nonce_again(machine: Machine) -> None:
    machine.identity.mkdir(parents=True)
    (machine.identity / "identity.crt").write_text("there")
    assert machine.run(render()).returncode == 0
    assert not (machine.identity / "nonce.jwt").exists()


def test_without_a_place_to_fetch_the_agent_from_it_says_so(machine: Machine) -> None:
    done = machine.run(render(url=""))
    assert done.returncode == 1
    assert "no agent in the image, and no agent.url in the configuration" in done.stderr
    assert "no agent in the image" in machine.console


def test_a_download_that_fails_is_reported_on_the_console_without_its_signature(machine: Machine) -> None:
    machine.stub("curl", "echo try >> $NOTES; exit 22")
    done = machine.run(render(url="https://bucket.example.com/agent?X-Amz-Signature=secret"))
    assert done.returncode == 1
    assert machine.notes == ["try"] * 20
    assert "failed to download the agent from https://bucket.example.com/agent\n" in machine.console
    assert "failed to set up the agent (exit code 1)" in machine.console
    assert "secret" not in machine.console + done.stderr


def test_a_wrong_checksum_stops_it(machine: Machine) -> None:
    done = machine.run(render(sha256="0" * 64))
    assert done.returncode != 0
    assert not machine.agent.exists()
    assert list((machine.root / "usr/local/bin").iterdir()) == []
    assert list((machine.root / "usr/local/lib").iterdir()) == []
    assert "the agent has another checksum" in machine.console


def test_an_agent_without_files_is_reported_with_its_log(machine: Machine) -> None:
    (machine.root / "download").write_text(AGENT + '\n[ "$1" != wait ]\n')
    done = machine.run(render() + "echo own part\n")
    assert done.returncode == 1
    assert "the nonce is rejected" in machine.console
    assert "own part" not in done.stdout


def test_the_groups_own_commands_follow_with_their_own_settings(machine: Machine) -> None:
    done = machine.run(render() + "false\numask\necho ${unset-} done\n")
    assert done.returncode == 0
    assert done.stdout.split() == ["0022", "done"]


def test_vars_cannot_break_out_of_the_script(machine: Machine) -> None:
    owned = machine.root / "owned"
    evil = f"https://example.com/'; touch {shlex.quote(str(owned))}; '"
    machine.run(render(url=evil, version=f"1'; touch {owned}; '", WaitTimeout=f"1m; touch {owned}"))
    machine.run(render(url=evil, sha256=f"'; touch {owned}; '"))
    assert not owned.exists()


def test_the_script_is_small() -> None:
    assert len(SCRIPT.read_bytes()) < 4096
    assert len(render().encode()) < 4096


def test_the_check_of_the_configuration_knows_how_much_it_adds() -> None:
    rng = SystemRng()
    key = keys.generate(rng)
    claims = nonce.AgentClaims(
        jti=nonce.new_jti(rng),
        cluster=ClusterId("c1"),
        tenant=TenantId("default"),
        instance=InstanceId("etc-01jw51srryegh9snf9cmeh3k4q"),
        shard=ShardId("s1"),
        group=GroupName("etc"),
        on_demand=False,
        config_hash="0" * 64,
        issued=1_790_000_000,
        expires=1_790_003_600,
    )
    values = new_ca(ClusterId("c1"), now=1.79e9, rng=rng).pem + nonce.sign(
        claims, key, nonce.key_id(keys.public_bytes(key))
    )
    size = len(render(url="")) - len(CA + "head.body.tail") + len(values)
    assert provider_rules.AGENT_BASE_BYTES <= size < provider_rules.AGENT_BASE_BYTES + 500


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    script = tmp_path / "agent.sh"
    script.write_text(render(sha256="0" * 64, version="1.2.3", OnReceive="true"))
    done = subprocess.run(["shellcheck", "--shell=sh", str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
