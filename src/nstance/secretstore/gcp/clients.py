"""The client of Google Cloud for secrets and keys, opened when it is first needed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nstance.clock import Clock, Rng
from nstance.clouds.errors import NotSentError
from nstance.secretstore import errors

if TYPE_CHECKING:
    from nstance.gcp.client import GoogleClient


class GoogleClients:
    def __init__(self, *, project: str, clock: Clock, rng: Rng, environment: Mapping[str, str]) -> None:
        """`project` is the configured one; without it that of the credentials."""
        self.clock = clock
        self.rng = rng
        self._project = project
        self._environment = environment
        self._open: GoogleClient | None = None

    def client(self) -> "GoogleClient":
        if self._open is None:
            from nstance.gcp.client import GoogleClient  # most servers need no secret of Google

            self._open = GoogleClient(clock=self.clock, environment=self._environment)
        return self._open

    async def project(self) -> str:
        """Raises UnavailableError."""
        if not self._project:
            try:
                self._project = await self.client().project()
            except NotSentError as problem:
                raise errors.UnavailableError(
                    f"no Google Cloud project for secrets: set cluster.secrets.project_id ({problem})"
                ) from problem
        return self._project

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close()
            self._open = None
