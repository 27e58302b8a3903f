"""VMs as detached processes, each running an agent, so that they outlive the server.

The default for first tries and tests; it needs nothing but Python.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from nstance.model.ids import InstanceId
from nstance.providers import errors, instance_dirs, launch, local, port

_START_TIMEOUT_SECONDS = 10.0


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

    def _start(self, record: instance_dirs.Record, lock: instance_dirs.Lock) -> None:
        directory = self._dirs.directory(record.id)
        with (directory / launch.LOG).open("ab") as log:
            launcher = subprocess.Popen(
                launch.command(directory, lock=lock.descriptor),
                env=local.clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock.descriptor,),
                start_new_session=True,
            )
        try:
            launcher.wait(_START_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()
            raise errors.UnknownOutcomeError(
                f"the agent of {record.id} did not start within {_START_TIMEOUT_SECONDS:g} s"
            ) from None
        if self._dirs.process(record.id) is None:
            raise errors.UnknownOutcomeError(f"failed to start the agent of {record.id}: see {directory / launch.LOG}")

    def _on_started(self, record: instance_dirs.Record) -> None:
        """Nothing to do."""

    def _on_ended(self, id: InstanceId) -> None:
        """Nothing to do."""
