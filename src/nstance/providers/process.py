"""VMs as child processes of nobody: each one runs an agent, detached, so that it outlives the server.

The embedded default for first tries and tests; it needs nothing but Python.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from nstance.model.ids import InstanceId
from nstance.providers import errors, instance_dirs, launch, local, port

_START_TIMEOUT = 10.0


class ProcessProvider(local.LocalProvider):
    scheme = "process"

    def __init__(
        self,
        scope: port.Scope,
        *,
        dir: Path,
        command: Sequence[str] = local.AGENT,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(scope, dir=dir, command=command, env=env)

    def _start(self, record: instance_dirs.Record, held: instance_dirs.Held) -> None:
        home = self._homes.home(record.id)
        with (home / launch.LOG).open("ab") as log:
            launcher = subprocess.Popen(
                launch.command(home, lock=held.lock),
                env=local.clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(held.lock,),
                start_new_session=True,
            )
        try:
            launcher.wait(_START_TIMEOUT)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()
            raise errors.UnknownOutcomeError(
                f"the agent of {record.id} was not started within {_START_TIMEOUT:g} s"
            ) from None
        if self._homes.process(record.id) is None:
            raise errors.UnknownOutcomeError(f"the agent of {record.id} could not be started: see {home / launch.LOG}")

    def _started(self, record: instance_dirs.Record) -> None:
        """Nothing more to do."""

    def _ended(self, id: InstanceId) -> None:
        """Nothing beside the home."""
