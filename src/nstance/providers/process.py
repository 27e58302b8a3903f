"""VMs as detached processes, each running an agent, so that they outlive the server.

The default for first tries and tests; it needs nothing but Python.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nstance.model.ids import InstanceId
from nstance.providers import detached, instance_dirs, local, port


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
        detached.start(self._dirs, record, lock)

    def _on_started(self, record: instance_dirs.Record) -> None:
        """Nothing to do."""

    def _on_ended(self, id: InstanceId) -> None:
        """Nothing to do."""
