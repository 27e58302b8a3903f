"""Secrets in a dictionary: for tests and the simulator."""

from nstance.secretstore import errors, port


class MemoryStore:
    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    async def get(self, name: str) -> bytes:
        try:
            return self._values[port.check_name(name)]
        except KeyError:
            raise errors.NotFoundError(f"no secret {name!r}") from None

    async def create(self, name: str, value: bytes) -> None:
        if port.check_name(name) in self._values:
            raise errors.AlreadyExistsError(f"the secret {name!r} already exists")
        await self.put(name, value)

    async def put(self, name: str, value: bytes) -> None:
        port.check_value(value)
        self._values[port.check_name(name)] = value

    async def list(self) -> list[port.SecretName]:
        return [port.SecretName(name) for name in sorted(self._values)]

    async def delete(self, name: str) -> None:
        self._values.pop(port.check_name(name), None)
