"""Secrets as SecureString parameters in AWS Systems Manager's Parameter Store."""

from nstance.aws.client import SSM
from nstance.secretstore import errors, port, text
from nstance.secretstore.aws.calls import Calls
from nstance.secretstore.aws.clients import AwsClients
from nstance.secretstore.cloud_calls import ATTEMPTS

MAX_VALUE = 8192  # AWS's limit for advanced parameters; up to 4,096 bytes are standard ones, which cost nothing
_PAGE = 10  # the most that AWS returns


class ParameterStore:
    def __init__(self, clients: AwsClients, *, prefix: str) -> None:
        self._calls = Calls(clients.client(), SSM, clients.clock)
        self._prefix = hierarchy(prefix)

    async def get(self, name: str) -> bytes:
        value, _ = await read_parameter(self._calls, self._prefix + port.check_name(name))
        return value

    async def create(self, name: str, value: bytes) -> None:
        await self._write(name, value, overwrite=False)

    async def put(self, name: str, value: bytes) -> None:
        await self._write(name, value, overwrite=True)

    async def list(self) -> list[port.SecretName]:
        params = {"Path": self._prefix.rstrip("/") or "/", "MaxResults": _PAGE}
        about = f"parameters {self._prefix}*"
        return await self._calls.names("GetParametersByPath", params, "Parameters", self._prefix, about=about)

    async def delete(self, name: str) -> None:
        full = self._prefix + port.check_name(name)
        try:
            await self._calls.call("DeleteParameter", {"Name": full}, about=f"parameter {full}")
        except errors.NotFoundError:
            return

    async def _write(self, name: str, value: bytes, *, overwrite: bool) -> None:
        full = self._prefix + port.check_name(name)
        port.check_value(value)
        encoded = text.to_text(value)
        if (size := len(encoded.encode())) > MAX_VALUE:
            raise errors.PermanentError(
                f"parameter {full}: expected at most {MAX_VALUE} bytes for {self._calls.place}, found {size}; "
                "store it in Secrets Manager or object storage"
            )
        await write_parameter(self._calls, full, encoded, overwrite=overwrite)


def hierarchy(prefix: str) -> str:
    """Parameters below a path start with a slash."""
    stripped = prefix.strip("/")
    return f"/{stripped}/" if stripped else "/"


async def write_parameter(calls: Calls, full: str, encoded: str, *, overwrite: bool) -> None:
    """Raises AlreadyExistsError unless `overwrite`."""
    params = {
        "Name": full,
        "Value": encoded,
        "Type": "SecureString",
        "Tier": "Intelligent-Tiering",
        "Overwrite": overwrite,
    }
    # A repeated create could not tell its own earlier success from another writer's.
    attempts = ATTEMPTS if overwrite else 1
    await calls.call("PutParameter", params, about=f"parameter {full}", attempts=attempts)


async def read_parameter(calls: Calls, full: str) -> tuple[bytes, int]:
    """The value of a parameter by its full name or ARN, and its version. Raises NotFoundError."""
    about = f"parameter {full}"
    answer = await calls.call("GetParameter", {"Name": full, "WithDecryption": True}, about=about)
    found = answer.get("Parameter")
    if not isinstance(found, dict) or not isinstance(found.get("Value"), str):
        raise errors.DecryptionError(f"{about}: AWS's answer has no value")
    return text.from_text(found["Value"], about), int(found.get("Version") or 0)
