"""The command line against whole servers in this process: words in, text and exit code out."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from component.whole_server import SHARD, Operator, World
from nstance.admin import main
from nstance.config.addresses import Service
from nstance.model.roles import Role
from nstance.pki import keys


@dataclass
class Shell:
    """`await shell("group", "list")` with the environment that a person would have set."""

    world: World
    identity: Path
    environment: dict[str, str]

    async def __call__(self, *words: str, **environment: str) -> Result:
        """In a thread: the servers run in this one."""
        return await asyncio.to_thread(CliRunner().invoke, main.root, list(words), env=self.environment | environment)

    async def ok(self, *words: str, **environment: str) -> Result:
        result = await self(*words, **environment)
        assert result.exit_code == 0, result.output
        return result

    async def json(self, *words: str, **environment: str) -> Any:
        return json.loads((await self.ok(*words, "-o", "json", **environment)).stdout)

    async def refused(self, *words: str, code: int = 1, **environment: str) -> str:
        """What was said about it: exactly one line."""
        result = await self(*words, **environment)
        assert result.exit_code == code, result.output
        assert result.stderr.startswith("nstance-admin: ")
        assert result.stderr.count("\n") == 1, result.stderr
        return result.stderr


def operator_addresses(world: World) -> str:
    number = list(Service).index(Service.OPERATOR)
    return "|".join(f"127.0.0.1:{server.base + number}" for server in world.servers.values())


def write_identity(operator: Operator, directory: Path) -> Path:
    directory.mkdir()
    (directory / "tls.crt").write_text(operator.certificate_pem)
    (directory / "tls.key").write_text(keys.private_to_pem(operator.key))
    (directory / "ca.crt").write_text(operator.world.ca_pem)
    return directory


async def shell(world: World, tenant: str = "default", role: Role = Role.OPERATOR) -> Shell:
    """With an identity of its own, for the one shard of the world."""
    suffix = "" if role is Role.OPERATOR else f"-{role.value}"
    identity = write_identity(await world.operator(tenant, role), world.dir / f"identity-{tenant}{suffix}")
    environment = {
        "NSTANCE_ADMIN_SERVERS": f"{SHARD}={operator_addresses(world)}",
        "NSTANCE_ADMIN_IDENTITY_DIR": str(identity),
        "NSTANCE_ADMIN_SHARD": str(SHARD),
        "XDG_CONFIG_HOME": str(world.dir / "config"),  # not the contexts of the person who runs the tests
    }
    return Shell(world, identity, environment)
