"""VMs as tmux windows, each running an agent that restarts when its code changes.

The window is a view; the VM is the process in it. So closing a window by hand, or losing the tmux server, is noticed at
once: the process died. The trap: the first tmux command starts a server with its own environment, which every later
window inherits. Hence tmux is always called with a clean one.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nstance.model.ids import InstanceId
from nstance.providers import errors, instance_dirs, launch, local, port
from nstance.providers.nodes import Nodes

SESSION = "nstance-dev-agents"
_START_STEP_SECONDS = 0.02
_START_STEPS = 500  # 10 seconds
_TMUX_TIMEOUT_SECONDS = 10.0
_ATTEMPTS = 5
# tmux messages that mean "not found"; any other message is an error.
_NO_SESSION = (
    "no server running",
    "can't find session",
    "no such file or directory",
    "no current target",
    "server exited",
)
_NO_WINDOW = (*_NO_SESSION, "can't find window")


def agent_command() -> list[str]:
    """The agent, and in a source is_checkout also a watcher that restarts it when the sources change."""
    sources = Path(__file__).resolve().parents[2]
    is_checkout = sources.name == "src" and (sources.parent / "pyproject.toml").exists()
    can_reload = is_checkout and importlib.util.find_spec("watchfiles") is not None
    return reloading(local.AGENT, sources) if can_reload else list(local.AGENT)


def reloading(command: Sequence[str], sources: Path) -> list[str]:
    watch = [sys.executable, "-m", "watchfiles", "--filter", "python", "--target-type", "command"]
    return [*watch, shlex.join(command), str(sources)]


@dataclass(frozen=True, slots=True)
class Session:
    name: str = SESSION
    socket: str = ""  # a path or a name; empty: tmux's default

    def command(self) -> list[str]:
        return ["tmux"] if not self.socket else ["tmux", "-S" if "/" in self.socket else "-L", self.socket]


DEFAULT_SESSION = Session()


class TmuxProvider(local.LocalProvider):
    scheme = "dev"

    def __init__(
        self,
        scope: port.Scope,
        *,
        dir: Path,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        session: Session = DEFAULT_SESSION,
        dev_k8s_dir: Path | None = None,
    ) -> None:
        if shutil.which("tmux") is None:
            raise errors.PermanentError(
                "expected the program tmux, found none; install it, or use the provider 'process'"
            )
        super().__init__(scope, dir=dir, command=agent_command() if command is None else command, env=env)
        self._session = session.name
        self._tmux = session.command()
        self._nodes = None if dev_k8s_dir is None else Nodes(dev_k8s_dir.absolute())

    def _start(self, record: instance_dirs.Record, lock: instance_dirs.Lock) -> None:
        directory = self._dirs.directory(record.id)
        self._open(record.id, launch.command(directory), log=directory / launch.LOG)
        for _ in range(_START_STEPS):
            if self._dirs.process(record.id) is not None:
                return
            time.sleep(_START_STEP_SECONDS)
        raise errors.UnknownOutcomeError(
            f"the agent of {record.id} did not start in its window; see tmux session {self._session}"
        )

    def _on_started(self, record: instance_dirs.Record) -> None:
        if self._nodes is not None:
            self._nodes.add(record, self._describe(record))

    def _on_ended(self, id: InstanceId) -> None:
        self._run("kill-window", "-t", f"={self._session}:={window_name(id)}", absent=_NO_WINDOW)
        if self._nodes is not None:
            self._nodes.remove(id, self._provider_id(id))

    def _open(self, id: InstanceId, command: Sequence[str], *, log: Path) -> None:
        """Open a window, and create the session and the tmux server if they are missing. Its output is piped to the log in
        the same call, so that the log also has the output of an agent that fails at once."""
        window = f"={self._session}:={window_name(id)}"
        command_and_pipe = ("--", *command, ";", "pipe-pane", "-t", window, f"cat >> {shlex.quote(str(log))}")
        name = ("-d", "-n", window_name(id))
        for _ in range(_ATTEMPTS):
            opened = self._run("new-window", *name, "-t", f"={self._session}:", *command_and_pipe, absent=_NO_SESSION)
            if opened is None:
                size = ("-x", "200", "-y", "50")
                # Another server may create the session at the same moment, or close its last window.
                opened = self._run(
                    "new-session", *name, *size, "-s", self._session, *command_and_pipe, absent=("duplicate session",)
                )
            if opened is not None:
                return
        raise errors.UnknownOutcomeError(
            f"failed to open a window: tmux session {self._session} appears and disappears"
        )

    def _run(self, *arguments: str, absent: Sequence[str]) -> str | None:
        """The output of tmux, or None if its error is one of `absent`."""
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
                timeout=_TMUX_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise errors.UnknownOutcomeError(
                f"tmux {arguments[0]}: no answer within {_TMUX_TIMEOUT_SECONDS:g} s"
            ) from None
        if answer.returncode == 0:
            return answer.stdout.strip()
        message = answer.stderr.strip()
        if any(text in message.lower() for text in absent):
            return None
        raise errors.UnknownOutcomeError(f"tmux {arguments[0]}: {message or f'exit code {answer.returncode}'}")


def window_name(id: InstanceId) -> str:
    return f"nstance-agent-{id}"
