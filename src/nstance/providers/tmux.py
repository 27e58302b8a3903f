"""VMs as tmux windows, each one running an agent that starts anew when its code changes.

The window is a view; the VM is the process in it. So closing a window by hand, or losing the tmux server, is seen at
once and for sure: the process died. The trap: the first command that finds no tmux server starts one with its own
environment, and every later window would inherit that. Hence tmux is always called with a clean one.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nstance.model.ids import InstanceId
from nstance.providers import errors, instance_dirs, launch, local, port
from nstance.providers.nodes import Nodes

SESSION = "nstance-dev-agents"
_START_STEP = 0.02
_START_STEPS = 500  # 10 seconds
_TMUX_TIMEOUT = 10.0
_ATTEMPTS = 5
# What tmux says when there is positively nothing there; anything else is an error.
_NO_SESSION = (
    "no server running",
    "can't find session",
    "no such file or directory",
    "no current target",
    "server exited",
)
_NO_WINDOW = (*_NO_SESSION, "can't find window")


def agent_command() -> list[str]:
    """The agent, and in a checkout of the sources also a watcher that starts it anew when they change."""
    sources = Path(__file__).resolve().parents[2]
    checkout = sources.name == "src" and (sources.parent / "pyproject.toml").exists()
    reloads = checkout and importlib.util.find_spec("watchfiles") is not None
    return reloading(local.AGENT, sources) if reloads else list(local.AGENT)


def reloading(command: Sequence[str], sources: Path) -> list[str]:
    watch = [sys.executable, "-m", "watchfiles", "--filter", "python", "--target-type", "command"]
    return [*watch, shlex.join(command), str(sources)]


class TmuxProvider(local.LocalProvider):
    scheme = "dev"

    def __init__(
        self,
        scope: port.Scope,
        *,
        dir: Path,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        session: str = SESSION,
        socket: str = "",
        dev_k8s_dir: Path | None = None,
    ) -> None:
        if shutil.which("tmux") is None:
            raise errors.PermanentError(
                "expected the program tmux, found none; install it, or use the provider 'process'"
            )
        super().__init__(scope, dir=dir, command=agent_command() if command is None else command, env=env)
        self._session = session
        self._tmux = ["tmux"] if not socket else ["tmux", "-S" if "/" in socket else "-L", socket]
        self._nodes = None if dev_k8s_dir is None else Nodes(dev_k8s_dir.absolute())

    def _start(self, record: instance_dirs.Record, held: instance_dirs.Held) -> None:
        home = self._homes.home(record.id)
        self._open(record.id, launch.command(home), log=home / launch.LOG)
        for _ in range(_START_STEPS):
            if self._homes.process(record.id) is not None:
                return
            time.sleep(_START_STEP)
        raise errors.UnknownOutcomeError(
            f"the agent of {record.id} did not start in its window; look into session {self._session}"
        )

    def _started(self, record: instance_dirs.Record) -> None:
        if self._nodes is not None:
            self._nodes.add(record, self._show(record))

    def _ended(self, id: InstanceId) -> None:
        self._run("kill-window", "-t", f"={self._session}:={_window(id)}", absent=_NO_WINDOW)
        if self._nodes is not None:
            self._nodes.remove(id, self._provider_id(id))

    def _open(self, id: InstanceId, command: Sequence[str], *, log: Path) -> None:
        """A new window; with it the session, and the tmux server, if they are missing. What it shows is kept in the log as
        well, from the first word on, hence in one call: one that fails at once is gone before anybody looks."""
        window = f"={self._session}:={_window(id)}"
        within = ("--", *command, ";", "pipe-pane", "-t", window, f"cat >> {shlex.quote(str(log))}")
        name = ("-d", "-n", _window(id))
        for _ in range(_ATTEMPTS):
            made = self._run("new-window", *name, "-t", f"={self._session}:", *within, absent=_NO_SESSION)
            if made is None:
                size = ("-x", "200", "-y", "50")
                # Another server may make the session at the same moment, or end the last window of it.
                made = self._run(
                    "new-session", *name, *size, "-s", self._session, *within, absent=("duplicate session",)
                )
            if made is not None:
                return
        raise errors.UnknownOutcomeError(
            f"tmux session {self._session} comes and goes; no window could be opened in it"
        )

    def _run(self, *arguments: str, absent: Sequence[str]) -> str | None:
        """What tmux answers, or None if it says that what was asked for is not there (or there already)."""
        environment = local.clean_environment()
        if "TMUX_TMPDIR" in os.environ:
            environment["TMUX_TMPDIR"] = os.environ["TMUX_TMPDIR"]
        try:
            answer = subprocess.run(
                [*self._tmux, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TMUX_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise errors.UnknownOutcomeError(f"tmux {arguments[0]} gave no answer within {_TMUX_TIMEOUT:g} s") from None
        if answer.returncode == 0:
            return answer.stdout.strip()
        complaint = answer.stderr.strip()
        if any(text in complaint.lower() for text in absent):
            return None
        raise errors.UnknownOutcomeError(f"tmux {arguments[0]}: {complaint or f'exit code {answer.returncode}'}")


def _window(id: InstanceId) -> str:
    return f"nstance-agent-{id}"
