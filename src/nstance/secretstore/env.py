"""Secrets from environment variables, read-only.

`db-password` is the variable `NSTANCE_SECRET_DB_PASSWORD`, because shells allow neither dots nor dashes. So several names
read one variable; `list` returns one of them.
"""

import re
from collections.abc import Mapping

from nstance.secretstore import errors, port

DEFAULT_PREFIX = "NSTANCE_SECRET_"


class EnvStore:
    def __init__(self, environment: Mapping[str, str], *, prefix: str = DEFAULT_PREFIX) -> None:
        self._environment = environment
        self._prefix = prefix

    async def get(self, name: str) -> bytes:
        variable = self._prefix + re.sub(r"[.-]", "_", port.check_name(name)).upper()
        try:
            return self._environment[variable].encode("utf-8", "surrogateescape")
        except KeyError:
            raise errors.NotFoundError(f"no secret {name!r}: set the variable {variable}") from None

    async def create(self, name: str, value: bytes) -> None:
        raise _read_only()

    async def put(self, name: str, value: bytes) -> None:
        raise _read_only()

    async def list(self) -> list[port.SecretName]:
        found = (name.removeprefix(self._prefix) for name in self._environment if name.startswith(self._prefix))
        names = (name.lower().replace("_", "-") for name in found)
        return sorted(port.SecretName(name) for name in names if port.is_name(name))

    async def delete(self, name: str) -> None:
        raise _read_only()


def _read_only() -> errors.PermanentError:
    return errors.PermanentError(
        "secrets from the environment are read-only; set variables where the server is started"
    )
