"""The pages that a person can follow on one machine, followed: the configuration as printed, the commands in their order."""

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from e2e.test_dev_run import running
from nstance.dev import leftovers
from support import docs_pages, ports
from support.eventually import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SETTING_UP = ("export ", "nstance-admin cluster register-operator")
PLACEHOLDER = '$(nstance-admin instance list --group web -o json | grep -m 1 -o "web-[0-9a-z]*")'


@pytest.mark.parametrize("page", ["draining.md", "expiry.md", "rotation.md", "healing.md", "capacity.md"])
def test_a_page_over_make_dev(page: str, tmp_path: Path) -> None:
    """As the page says: its example for `make dev CONFIG=`, and the admin tool set up as in getting-started.md."""
    folder, config = tmp_path / "dev", tmp_path / "my.jsonc"
    [example] = docs_pages.blocks(page, "jsonc")
    config.write_text(example)
    first_page = docs_pages.runnable("getting-started.md")
    set_up = [command for command in first_page[:3] if command.startswith(SETTING_UP)]
    assert len(set_up) == 3
    commands = [re.sub(r"\bWEB\b", PLACEHOLDER, command) for command in docs_pages.runnable(page)]
    assert commands
    with running(folder, "--config", str(config)) as run:
        run.await_word("(all instances are running)")
        script = "\n".join([*set_up, *commands]).replace("temp/dev", str(folder))
        script = script.replace("$PWD/.venv/bin", str(Path(sys.executable).parent))
        script = script.replace("8993", str(run.ports + 3)).replace("9093", str(run.ports + 103))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=docs_pages.environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{run.output.read_text()}"
        assert run.end(signal.SIGINT) == 0


def test_a_shard_of_ones_own(tmp_path: Path) -> None:
    """The last section of getting-started.md, with ports that are free here."""
    commands = docs_pages.runnable("getting-started.md")
    first = next(number for number, command in enumerate(commands) if "--validate" in command)
    *prepare, serve = [command.replace(".venv/bin/", "") for command in commands[first:]]
    assert serve.startswith("nstance-server --shard one")
    with ports.claimed() as base:
        text = (docs_pages.ROOT / "examples/config-dev.jsonc").read_text()
        for number in range(5):
            text = text.replace(f"127.0.0.1:{8990 + number}", f"127.0.0.1:{base + number}")
        (tmp_path / "my.jsonc").write_text(text.replace('"size": 3', '"size": 1'))
        script = "\n".join([*prepare, f"exec {serve}"])
        with (tmp_path / "log").open("wb") as log:
            server = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=tmp_path,
                env=docs_pages.environment(),
                stdout=log,
                stderr=log,
            )
        try:

            def is_ready() -> bool:
                assert server.poll() is None, (tmp_path / "log").read_text()
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{base}/health", timeout=5) as answer:
                        return bool(answer.status == 200)
                except OSError:
                    return False

            wait_for("the server is ready", is_ready)
            wait_for("an agent has its files", lambda: list(tmp_path.glob("cache/instances/*/recv/motd")))
            server.terminate()
            assert server.wait(60) == 0
        finally:
            if server.poll() is None:
                server.kill()
                server.wait()
            leftovers.end_agents(tmp_path / "cache/instances")
