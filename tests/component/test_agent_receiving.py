"""An agent makes keys, receives files, and runs the command for them."""

import json
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509

from component import agent_world
from component.agent_server import AgentServer
from component.agent_world import Agent
from nstance.agent.files import installation
from nstance.agent.settings import Waits
from nstance.model.ids import InstanceId
from nstance.pki import keys as pki_keys
from nstance.tasks.backoff import Backoff
from nstance.v1 import agent_pb2
from nstance.wire import status
from support.eventually import eventually

agent = agent_world.agent
instance = agent_world.instance
server = agent_world.server
system_state = agent_world.system_state


async def test_makes_keys_and_sends_the_public_halves(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.last_seen.key_streams)
    server.ask_keys(["netsy.server", "netsy.peer"])
    [sent] = await eventually(lambda: server.last_seen.keys)
    assert sent == {name: (agent.home / "keys" / f"{name}.pub").read_text() for name in ("netsy.server", "netsy.peer")}
    assert stat.S_IMODE((agent.home / "keys" / "netsy.server.key").stat().st_mode) == 0o640


async def test_keys_that_could_not_be_submitted_are_submitted_again(server: AgentServer, agent: Agent) -> None:
    server.key_names = ["a"]
    server.scripts.submit_keys.extend([status.unavailable("not leading"), None])
    agent.start()
    assert await eventually(lambda: server.last_seen.keys) == [{"a": (agent.home / "keys" / "a.pub").read_text()}]


async def test_a_request_for_a_bad_key_name_is_reported(server: AgentServer, agent: Agent) -> None:
    server.key_names = ["../../etc/shadow"]
    agent.start()
    report = await eventually(lambda: next((r for r in server.last_seen.reports if r.files_error), None))
    assert "rejected" in report.files_error
    server.ask_keys(["good"])
    await eventually(lambda: server.last_seen.keys and server.last_seen.reports[-1].files_error == "")


async def test_files_arrive_and_are_reported(server: AgentServer, agent: Agent) -> None:
    server.push({"config.jsonc": b"{/* hello */}", "big.bin": b"x" * (1 << 20)}, "sha256:1")
    agent.start()
    report = await eventually(lambda: next((r for r in server.last_seen.reports if r.config_hash), None))
    assert report.config_hash == "sha256:1"
    assert {state.name for state in report.files} == {"config.jsonc", "big.bin"}
    assert (agent.identity / "config.hash").read_text() == "sha256:1\n"
    server.push({"config.jsonc": b"{}"}, "sha256:2")
    await eventually(lambda: server.last_seen.reports[-1].config_hash == "sha256:2")
    assert agent.received() == {"config.jsonc": b"{}"}


async def test_certificates_are_reported_with_serial_and_expiry(
    server: AgentServer, agent: Agent, instance: InstanceId
) -> None:
    pem = server.issue(instance, pki_keys.public_bytes(pki_keys.generate(server.rng))).certificate_pem
    server.push({"server.crt": pem.encode()}, "sha256:1")
    agent.start()
    report = await eventually(lambda: next((r for r in server.last_seen.reports if r.config_hash), None))
    certificate = x509.load_pem_x509_certificate(pem.encode())
    [state] = report.files
    assert (int(state.serial, 16), len(state.serial)) == (certificate.serial_number, 32)
    assert state.expires_unix == int(certificate.not_valid_after_utc.timestamp())


@pytest.mark.parametrize(
    ("files", "count", "message"),
    [
        ({"good.txt": b"", "bad.json": b"{"}, 2, "expected JSON"),
        ({"good.txt": b"", "../up": b""}, 2, "starts with a dot"),
        ({"good.txt": b"", "x": b"x" * (1 << 20) + b"x"}, 2, "at most 1048576 bytes"),
        ({"good.txt": b""}, 2, "expected 2 files"),
    ],
)
async def test_a_bad_set_changes_nothing_and_is_reported_with_the_reason(
    server: AgentServer, agent: Agent, files: dict[str, bytes], count: int, message: str
) -> None:
    server.push({"old.txt": b"old"}, "sha256:1")
    agent.start()
    await eventually(lambda: server.last_seen.reports and server.last_seen.reports[-1].config_hash == "sha256:1")
    server.push(files, "sha256:2", count=count)
    report = await eventually(lambda: next((r for r in server.last_seen.reports if r.files_error), None))
    assert message in report.files_error
    assert report.config_hash == "sha256:1"
    assert agent.received() == {"old.txt": b"old"}
    server.push({"new.txt": b"new"}, "sha256:3")
    await eventually(lambda: server.last_seen.reports[-1].config_hash == "sha256:3")
    assert server.last_seen.reports[-1].files_error == ""
    assert agent.received() == {"new.txt": b"new"}


async def test_a_set_cut_in_the_middle_leaves_the_old_one(server: AgentServer, agent: Agent) -> None:
    server.push({"old.txt": b"old"}, "sha256:1")
    agent.start()
    await eventually(lambda: server.last_seen.reports and server.last_seen.reports[-1].config_hash == "sha256:1")
    whole = server.file_set({"new.txt": b"new", "more.txt": b"more"}, "sha256:2")
    server.sets = whole[:1]  # the first file and no more
    server.cut()
    await eventually(lambda: (agent.recv / ".incoming-2" / "new.txt").exists())
    assert (agent.recv / "old.txt").read_bytes() == b"old"
    server.sets = whole
    server.cut()
    await eventually(lambda: server.last_seen.reports[-1].config_hash == "sha256:2")
    assert agent.received() == {"new.txt": b"new", "more.txt": b"more"}


async def test_on_reconnect_it_says_what_it_has(server: AgentServer, agent: Agent) -> None:
    server.push({"a.txt": b"a"}, "sha256:1")
    agent.start()
    await eventually(lambda: server.last_seen.reports and server.last_seen.reports[-1].config_hash == "sha256:1")
    server.sets = []
    server.cut()
    await eventually(lambda: len(server.last_seen.file_requests) == 2)
    assert server.last_seen.file_requests[1].config_hash == "sha256:1"
    assert [state.name for state in server.last_seen.file_requests[1].files] == ["a.txt"]


async def test_the_command_runs_after_each_set_and_not_for_the_same_one(
    server: AgentServer, agent: Agent, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    command = f"sh -c 'cat {agent.recv}/a.txt >> {runs}'"
    server.push({"a.txt": b"1"}, "sha256:1")
    agent.start(NSTANCE_ON_RECEIVE=command)
    await eventually(lambda: runs.exists() and runs.read_text() == "1")
    await eventually(lambda: (agent.identity / "on-receive.done").exists())
    server.push({"a.txt": b"1"}, "sha256:1")
    server.push({"a.txt": b"2"}, "sha256:2")
    await eventually(lambda: runs.read_text() == "12")
    await eventually(lambda: (agent.identity / "on-receive.done").exists())
    (agent.identity / "on-receive.done").unlink()  # as if it had stopped before the command ended
    await agent.stop()
    agent.start(NSTANCE_ON_RECEIVE=command)
    await eventually(lambda: runs.read_text() == "122")


async def test_a_command_that_hangs_or_fails_is_reported_and_does_not_stop_the_files(
    server: AgentServer, agent: Agent
) -> None:
    agent.waits = Waits(command=2.0)
    server.push({"a.txt": b"1"}, "sha256:1")
    agent.start(NSTANCE_ON_RECEIVE=f"sh -c 'grep -q 1 {agent.recv}/a.txt && sleep 600; exit 3'")
    await eventually(lambda: "did not end within 2 s and was killed" in last_report(server).files_error)
    server.push({"a.txt": b"2"}, "sha256:2")
    await eventually(lambda: "NSTANCE_ON_RECEIVE failed: exit code 3" in last_report(server).files_error)
    assert agent.received() == {"a.txt": b"2"}
    assert (last_report(server).config_hash, last_report(server).received_hash) == ("sha256:2", "")


async def test_a_set_counts_as_received_once_its_command_has_succeeded(
    server: AgentServer, agent: Agent, tmp_path: Path
) -> None:
    agent.waits = Waits(command_retry=Backoff(0.05, 300.0))
    go_on = tmp_path / "go-on"
    server.push({"a.txt": b"1"}, "sha256:1")
    agent.start(NSTANCE_ON_RECEIVE=f"test -e {go_on}")
    await eventually(lambda: "exit code 1" in last_report(server).files_error)
    assert last_report(server).received_hash == ""
    go_on.touch()  # it is tried again
    await eventually(lambda: last_report(server).received_hash == "sha256:1")
    assert last_report(server).files_error == ""
    go_on.unlink()
    server.push({"a.txt": b"2"}, "sha256:2")
    await eventually(lambda: last_report(server).config_hash == "sha256:2" and last_report(server).files_error)
    assert last_report(server).received_hash == ""
    await agent.stop()  # the mark of the first set does not count for the second
    agent.start(NSTANCE_ON_RECEIVE=f"test -e {go_on}")
    await eventually(lambda: last_report(server).files_error)
    assert last_report(server).received_hash == ""


async def test_without_a_command_an_installed_set_is_received(server: AgentServer, agent: Agent) -> None:
    server.push({"a.txt": b"1"}, "sha256:1")
    agent.start()
    await eventually(lambda: last_report(server).received_hash == "sha256:1")


async def test_a_file_that_was_changed_on_the_machine_is_asked_for_again(server: AgentServer, agent: Agent) -> None:
    server.report_interval = 0.1
    server.push({"a.txt": b"1"}, "sha256:1")
    agent.start()
    await eventually(lambda: last_report(server).received_hash == "sha256:1")
    (agent.recv / "a.txt").write_text("mine")
    await eventually(lambda: (agent.recv / "a.txt").read_bytes() == b"1")
    await eventually(lambda: last_report(server).received_hash == "sha256:1")


def last_report(server: AgentServer) -> agent_pb2.HealthReport:
    return server.last_seen.reports[-1] if server.last_seen.reports else agent_pb2.HealthReport()


async def test_a_set_is_acted_upon_even_if_the_connection_is_gone_by_then(
    server: AgentServer, agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, begun, go_on = installation.Incoming.commit, threading.Event(), threading.Event()

    def slow(self: installation.Incoming, config_hash: str, count: int) -> bool:
        begun.set()
        assert go_on.wait(60)
        return real(self, config_hash, count)

    monkeypatch.setattr(installation.Incoming, "commit", slow)
    server.push({"a.txt": b"1"}, "sha256:1")
    agent.start(NSTANCE_ON_RECEIVE=f"touch {tmp_path}/ran")
    await eventually(begun.is_set)
    server.sets = []
    server.cut()
    await eventually(lambda: server.last_seen.connections == 2)
    go_on.set()
    await eventually((tmp_path / "ran").exists)


async def test_a_command_that_was_cut_short_runs_again_at_the_next_start(
    server: AgentServer, agent: Agent, tmp_path: Path
) -> None:
    runs, hold = tmp_path / "runs", tmp_path / "hold"
    command = f"sh -c 'cat {agent.recv}/a.txt >> {runs}; while [ -e {hold} ]; do sleep 0.01; done'"
    server.push({"a.txt": b"1"}, "sha256:1")
    agent.start(NSTANCE_ON_RECEIVE=command)
    await eventually(lambda: (agent.identity / "on-receive.done").exists())
    hold.touch()
    server.push({"a.txt": b"2"}, "sha256:2")
    await eventually(lambda: runs.read_text() == "12")
    await agent.crash()
    hold.unlink()
    server.sets = []
    agent.start(NSTANCE_ON_RECEIVE=command)
    await eventually(lambda: runs.read_text() == "122")


async def test_a_key_that_was_lost_is_made_anew_and_so_are_the_certificates(server: AgentServer, agent: Agent) -> None:
    """Without a new set the old certificate would stay beside a key that it does not belong to, until its renewal."""
    server.key_names = ["a"]
    agent.start()
    await eventually(lambda: server.last_seen.keys)
    server.push({"motd": b"hello"}, "h1")
    await eventually(lambda: any(report.config_hash == "h1" for report in server.last_seen.reports))
    before = len(server.last_seen.file_requests)
    server.ask_keys(["a"])  # nothing is lost: nothing is asked for
    await eventually(lambda: len(server.last_seen.keys) == 2)
    (agent.home / "keys" / "a.key").unlink()
    server.ask_keys(["a"])
    await eventually(lambda: len(server.last_seen.keys) == 3)
    assert server.last_seen.keys[1] == server.last_seen.keys[0] != server.last_seen.keys[2]
    asked = await eventually(lambda: server.last_seen.file_requests[before:])
    assert [request.config_hash for request in asked] == [""]
    await eventually(lambda: json.loads((agent.identity / "files.json").read_text())["config_hash"] == "h1")
