"""Calls to AWS's secret services, with failures as errors of the secret port.

An error names the secret and, where AWS denies a call, the permission that is missing. The trap: AWS also denies a call on
a secret that does not exist when the policy lists secrets by name, so a denial is never read as an absence.
"""

from nstance.aws.client import KMS, SECRETS, SSM, AwsClient, Service
from nstance.aws.encoding import Answer, Params
from nstance.aws.errors import AwsError
from nstance.clock import Clock
from nstance.secretstore import errors
from nstance.secretstore.cloud_calls import ATTEMPTS, repeat
from nstance.secretstore.port import SecretName, is_name

_TITLES = {SECRETS: "Secrets Manager", SSM: "SSM Parameter Store", KMS: "KMS"}
_NOT_FOUND = frozenset(
    {"ResourceNotFoundException", "ParameterNotFound", "ParameterVersionNotFound", "NotFoundException"}
)
_EXISTS = frozenset({"ResourceExistsException", "ParameterAlreadyExists"})
_TRANSIENT = frozenset(
    {"InternalServiceError", "InternalServerError", "KMSInternalException", "DependencyTimeoutException"}
)


class Calls:
    """Calls of one service. All of them may be repeated, unless `attempts` says otherwise."""

    def __init__(self, client: AwsClient, service: Service, clock: Clock) -> None:
        self._client = client
        self._service = service
        self._clock = clock

    @property
    def place(self) -> str:
        return f"{_TITLES[self._service]} in {self._client.region}"

    async def call(self, action: str, params: Params, *, about: str, attempts: int = ATTEMPTS) -> Answer:
        """`about` names what is called for, as in `secret nstance/prod/db`. Raises the errors of the secret port."""
        return await repeat(
            lambda: self._client.json(self._service, action, params),
            lambda problem: self._translate(problem, action, about),
            refused=AwsError,
            where=f"{about} in {self.place}",
            attempts=attempts,
            clock=self._clock,
        )

    async def names(self, action: str, params: Params, entries: str, prefix: str, *, about: str) -> list[SecretName]:
        """Of all pages, below a prefix. `entries`: the answer's list."""
        found: list[SecretName] = []
        more: dict[str, object] = {}
        while True:
            page = await self.call(action, {**params, **more}, about=about)
            full = (str(each.get("Name", "")) for each in page.get(entries) or ())
            below = (name.removeprefix(prefix) for name in full if name.startswith(prefix))
            found += [SecretName(name) for name in below if is_name(name)]
            if not page.get("NextToken"):
                return sorted(found)
            more = {"NextToken": page["NextToken"]}

    def _translate(self, problem: Exception, action: str, about: str) -> errors.SecretError:
        where = f"{about} in {self.place}"
        if not isinstance(problem, AwsError):
            return errors.UnavailableError(f"{where}: {problem}")
        if problem.code in _NOT_FOUND:
            return errors.NotFoundError(f"there is no {where}")
        if problem.code in _EXISTS:
            return errors.AlreadyExistsError(f"the {where} already exists")
        if problem.is_throttled or problem.is_server_fault or problem.is_expired or problem.code in _TRANSIENT:
            return errors.UnavailableError(f"{where}: {problem}")
        if problem.is_denied:
            permission = self._permission(problem, action)
            return errors.PermanentError(
                f"{where}: AWS denies {permission}; allow it in the policy of this program's role: {problem}"
            )
        if "deletion" in problem.message:
            return errors.PermanentError(
                f"{where} is scheduled for deletion; restore it (aws secretsmanager restore-secret), or wait for its end"
            )
        return errors.PermanentError(f"{where}: {problem}")

    def _permission(self, problem: AwsError, action: str) -> str:
        """What is missing. Reading a secret also needs the right to decrypt with its key."""
        if problem.permission:
            return problem.permission
        if self._service is not KMS and "KMS" in problem.message:
            return "kms:Decrypt on the key that encrypts it"
        return f"{self._service.name}:{action}"
