"""Calls to Google's secret services, with failures as errors of the secret port.

An error names the secret and, where Google denies a call, the permission that is missing. A denial is never read as an
absence.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nstance.clock import Clock
from nstance.gcp.client import Answer, GoogleClient
from nstance.gcp.endpoints import KMS, SECRETS, Service
from nstance.gcp.errors import GoogleError
from nstance.secretstore import errors
from nstance.secretstore.cloud_calls import ATTEMPTS, repeat

_TITLES = {SECRETS: "Secret Manager", KMS: "Cloud KMS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretCall:
    """`about` names what is called for, as in `secret nstance__prod__db`; `permission` is what the call needs."""

    method: str
    path: str
    permission: str
    about: str
    query: Mapping[str, str] | None = None
    body: Mapping[str, object] | None = None
    attempts: int = ATTEMPTS


class Calls:
    """Calls of one service. All of them may be repeated, unless `attempts` says otherwise."""

    def __init__(self, client: GoogleClient, service: Service, clock: Clock) -> None:
        self._client = client
        self._service = service
        self._clock = clock
        self.place = _TITLES[service]

    async def call(self, call: SecretCall) -> Answer:
        """Raises the errors of the secret port."""
        return await repeat(
            lambda: self._client.json(self._service, call.method, call.path, query=call.query, body=call.body),
            lambda problem: self._translate(problem, call),
            refused=GoogleError,
            where=f"{call.about} in {self.place}",
            attempts=call.attempts,
            clock=self._clock,
        )

    def _translate(self, problem: Exception, call: SecretCall) -> errors.SecretError:
        where = f"{call.about} in {self.place}"
        if not isinstance(problem, GoogleError):
            return errors.UnavailableError(f"{where}: {problem}")
        if problem.is_throttled or problem.is_server_fault or problem.is_expired:
            return errors.UnavailableError(f"{where}: {problem}")
        if problem.status == 404:
            return errors.NotFoundError(f"there is no {where}")
        if problem.status == 409:
            return errors.AlreadyExistsError(f"the {where} already exists")
        if problem.is_denied:
            return errors.PermanentError(
                f"{where}: Google denies {call.permission}; allow it to this program's service account: {problem}"
            )
        return errors.PermanentError(f"{where}: {problem}")
