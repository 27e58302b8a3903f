"""The userdata script as the server renders it, run with the system's places moved into a directory."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nstance import gotemplate
from nstance.agent import settings
from nstance.config.checks import provider_rules

DEPLOY = Path(__file__).parents[2] / "deploy" / "agent"
CA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def render(*, provider: str = "gcp", **vars: str) -> str:
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
    }
    return gotemplate.render((DEPLOY / "agent-userdata.sh.tpl").read_text(), data)


class Machine:
    """A place to run the script in: its own root, a network with one file, and a systemd that takes notes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for directory in ("opt", "etc/systemd/system", "usr/local/bin", "bin"):
            (root / directory).mkdir(parents=True)
        self.stub(
            "curl",
            'while [ "$1" != -o ]; do shift; done; printf "#!/bin/sh\\necho agent \\"\\$@\\" >> %s\\n" "$NOTES" > "$2"',
        )
        self.stub("systemctl", 'echo systemctl "$@" >> "$NOTES"')

    def stub(self, name: str, body: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        for place in ("/opt/nstance-agent", "/etc/", "/usr/local/bin"):
            script = script.replace(f" {place}", f" {self.root}{place}").replace(f"={place}", f"={self.root}{place}")
            script = script.replace(f"\n{place}", f"\n{self.root}{place}")
        environment = {"PATH": f"{self.root}/bin:{os.environ['PATH']}", "NOTES": str(self.root / "notes")}
        return subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, timeout=30)

    @property
    def notes(self) -> list[str]:
        return (self.root / "notes").read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_installs_writes_nonce_and_ca_starts_and_waits(machine: Machine) -> None:
    done = machine.run(
        render(AgentURL="https://example.com/{arch}/agent.pyz", OnReceive='sh -c "echo $HOME"', WaitTimeout="2m")
    )
    assert done.returncode == 0, done.stderr
    identity = machine.root / "opt/nstance-agent/identity"
    assert (identity / "nonce.jwt").read_text() == "head.body.tail"
    assert (identity / "ca.crt").read_text() == CA
    assert identity.stat().st_mode & 0o777 == 0o700
    environment = (machine.root / "etc/nstance-agent.env").read_text().splitlines()
    assert 'NSTANCE_SERVER_REGISTRATION_ADDR="10.0.0.1:8992,10.0.0.2:8992"' in environment
    assert 'NSTANCE_INSTANCE_ID="etc-01jw51srryegh9snf9cmeh3k4q"' in environment
    assert "NSTANCE_PROVIDER=google" in environment
    assert 'NSTANCE_ON_RECEIVE="sh -c \\"echo $HOME\\""' in environment
    assert machine.notes == [
        "systemctl daemon-reload",
        "systemctl enable --now nstance-agent.service nstance-agent-shutdown.service",
        "agent wait --timeout 2m",
    ]


@pytest.mark.parametrize("kind", sorted(provider_rules.RULES))
def test_every_providers_instances_get_an_environment_that_the_agent_takes(machine: Machine, kind: str) -> None:
    assert machine.run(render(provider=kind, AgentURL="https://example.com/agent.pyz")).returncode == 0
    lines = (machine.root / "etc/nstance-agent.env").read_text().splitlines()
    configured = settings.read({name: shlex.split(value)[0] for name, value in (line.split("=", 1) for line in lines)})
    assert (configured.provider is None) == provider_rules.RULES[kind].local


def test_a_registered_instance_gets_no_nonce_again(machine: Machine) -> None:
    identity = machine.root / "opt/nstance-agent/identity"
    identity.mkdir(parents=True)
    (identity / "identity.crt").write_text("there")
    assert machine.run(render(AgentURL="https://example.com/agent.pyz")).returncode == 0
    assert not (identity / "nonce.jwt").exists()


def test_without_a_place_to_fetch_the_agent_from_it_says_so(machine: Machine) -> None:
    done = machine.run(render())
    assert done.returncode == 1
    assert "no var AgentURL" in done.stderr


def test_a_wrong_checksum_stops_it(machine: Machine) -> None:
    done = machine.run(render(AgentURL="https://example.com/agent.pyz", AgentSHA256="0" * 64))
    assert done.returncode != 0
    assert not (machine.root / "usr/local/bin/nstance-agent").exists()
    assert list((machine.root / "usr/local/bin").iterdir()) == []


def test_vars_cannot_break_out_of_the_script(machine: Machine) -> None:
    evil = f"https://example.com/'; touch {shlex.quote(str(machine.root / 'owned'))}; '"
    machine.run(render(AgentURL=evil, WaitTimeout=f"1m; touch {machine.root / 'owned'}"))
    assert not (machine.root / "owned").exists()


def test_it_fits_into_the_smallest_userdata_limit() -> None:
    assert len(render(AgentURL="https://example.com/agent.pyz").encode()) < 16 * 1024 - 4096
