"""Operators: nonces for registration, direct registration, revocation."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nstance.admin import errors, files, output
from nstance.admin.client import CA, CERTIFICATE, KEY
from nstance.admin.cluster import shards
from nstance.admin.cluster.storage import open_storage
from nstance.admin.options import Target
from nstance.authority import registration
from nstance.clock import Rng
from nstance.model.ids import OperatorId, TenantId
from nstance.model.roles import Role
from nstance.pki import keys


async def new_nonce(
    target: Target, *, tenant: TenantId, life: float, buckets: Sequence[str], role: Role = Role.OPERATOR
) -> str:
    async with open_storage(target) as cluster:
        authority = await cluster.authority()
        await shards.check_tenant(cluster, tenant, buckets=buckets)
        return (await cluster.operators()).new_nonce(authority, tenant=tenant, life=life, role=role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    operator: OperatorId
    serial: str
    expires: int
    written: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectRegistration:
    tenant: TenantId
    operator: OperatorId | None  # None: a new one
    public_key_file: Path | None  # None: a key is created
    directory: Path  # for the certificate and the key
    life: float
    buckets: Sequence[str]  # further ones whose shards may have the tenant
    role: Role = Role.OPERATOR


async def register(target: Target, wanted: DirectRegistration) -> Registered:
    """Writes the certificate last: if it exists, the other files do too. Running it again continues an earlier run."""
    directory, tenant = wanted.directory, wanted.tenant
    async with open_storage(target) as cluster:
        authority = await cluster.authority()
        await shards.check_tenant(cluster, tenant, buckets=wanted.buckets)
        if wanted.operator is None and (directory / CERTIFICATE).exists():
            raise errors.CommandError(
                f"{directory} already has an identity; give its --operator-id to write it again, or another directory"
            )
        if not target.dry_run:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        public, is_new = _public_key(wanted.public_key_file, directory / KEY, cluster.rng, dry_run=target.dry_run)
        registered, issued = await (await cluster.operators()).register_directly(
            authority, public, tenant=tenant, operator=wanted.operator, life=wanted.life, role=wanted.role
        )
        if issued.expires <= cluster.clock.wall():
            raise errors.CommandError(
                f"operator {registered.operator} is registered, but its certificate expired at "
                f"{output.timestamp(issued.expires)}; revoke it and register another"
            )
        if not target.dry_run:
            files.write(directory / CA, authority.bundle.encode(), mode=files.PUBLIC)
            files.write(directory / CERTIFICATE, issued.pem.encode(), mode=files.PUBLIC)
        written = [str(directory / name) for name in (CERTIFICATE, *((KEY,) if is_new else ()), CA)]
        return Registered(
            operator=registered.operator, serial=issued.serial_hex, expires=issued.expires, written=written
        )


def _public_key(public_key_file: Path | None, key_file: Path, rng: Rng, *, dry_run: bool) -> tuple[bytes, bool]:
    """The key to certify, and whether its private key was created here."""
    existing = keys.private_key_from_pem(key_file.read_bytes()) if key_file.exists() else None
    if public_key_file is not None:
        with public_key_file.open("rb") as file:
            public = keys.public_key_from_pem(file.read(keys.MAX_PEM + 1))
        if existing is not None and keys.public_bytes(existing) != public:
            raise errors.CommandError(f"{key_file} does not belong to {public_key_file}; choose another directory")
        return public, False
    if existing is not None:  # from an earlier run
        return keys.public_bytes(existing), False
    key = keys.generate(rng)
    if not dry_run:
        files.write(key_file, keys.private_to_pem(key).encode())
    return keys.public_bytes(key), True


async def revoke(target: Target, *, tenant: TenantId | None, operator: OperatorId) -> TenantId:
    """Returns its tenant, which is found by the ID if it is not given."""
    async with open_storage(target) as cluster:
        operators = await cluster.operators()
        if tenant is None:
            tenant = _tenant_of(operator, await operators.list())
        await operators.revoke(tenant, operator)
        return tenant


def _tenant_of(operator: OperatorId, known: Sequence[registration.Registration]) -> TenantId:
    tenants = sorted({each.tenant for each in known if each.operator == operator})
    if not tenants:
        raise errors.CommandError(f"operator {operator} is not registered in any tenant; see `cluster operators`")
    if len(tenants) > 1:
        raise errors.CommandError(
            f"operator {operator} is registered for {', '.join(tenants)}; choose one with --tenant"
        )
    return tenants[0]


def record(each: registration.Registration) -> dict[str, Any]:
    return {
        "operator": each.operator,
        "tenant": each.tenant,
        "role": each.role.value,
        "issued": output.timestamp(each.issued),
        "expires": output.timestamp(each.expires),
        "revoked": output.timestamp(each.revoked),
    }


async def list_operators(target: Target) -> list[registration.Registration]:
    async with open_storage(target) as cluster:
        return await (await cluster.operators()).list()
