"""Operators: nonces to register with, identities made directly, and taking them back."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nstance.admin import failures, files, output
from nstance.admin.cluster import shards
from nstance.admin.cluster.opened import opened
from nstance.admin.options import Target
from nstance.authority import registration
from nstance.clock import Rng
from nstance.model.ids import OperatorId, TenantId
from nstance.pki import keys

CERTIFICATE = "tls.crt"
KEY = "tls.key"
CA = "ca.crt"


async def new_nonce(target: Target, *, tenant: TenantId, life: float, buckets: Sequence[str]) -> str:
    async with opened(target) as cluster:
        authority = await cluster.authority()
        await shards.check_tenant(cluster, tenant, buckets=buckets)
        return (await cluster.operators()).new_nonce(authority, tenant=tenant, life=life)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    operator: OperatorId
    serial: str
    expires: int
    written: Sequence[str]


async def register(
    target: Target,
    *,
    tenant: TenantId,
    operator: OperatorId | None,
    public_key_file: Path | None,
    directory: Path,
    life: float,
    buckets: Sequence[str],
) -> Registered:
    """The certificate is written last: where it is, the rest is too. Running it again goes on where it stopped."""
    async with opened(target) as cluster:
        authority = await cluster.authority()
        await shards.check_tenant(cluster, tenant, buckets=buckets)
        if operator is None and (directory / CERTIFICATE).exists():
            raise failures.Refused(
                f"{directory} already holds an identity; give its --operator-id to write it again, or another directory"
            )
        if not target.dry_run:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        public, made = _public_key(public_key_file, directory / KEY, cluster.rng, dry_run=target.dry_run)
        people = await cluster.operators()
        kept, issued = await people.register_directly(authority, public, tenant=tenant, operator=operator, life=life)
        if issued.expires <= cluster.clock.wall():
            raise failures.Refused(
                f"operator {kept.operator} is registered, but its certificate expired at {output.when(issued.expires)}; "
                "revoke it and register another"
            )
        if not target.dry_run:
            files.write(directory / CA, authority.bundle.encode(), mode=files.PUBLIC)
            files.write(directory / CERTIFICATE, issued.pem.encode(), mode=files.PUBLIC)
        written = [str(directory / name) for name in (CERTIFICATE, *((KEY,) if made else ()), CA)]
        return Registered(operator=kept.operator, serial=issued.serial_hex, expires=issued.expires, written=written)


def _public_key(given: Path | None, kept: Path, rng: Rng, *, dry_run: bool) -> tuple[bytes, bool]:
    """The key to certify, and whether its private half was made here."""
    mine = keys.private_key_from_pem(kept.read_bytes()) if kept.exists() else None
    if given is not None:
        with given.open("rb") as file:
            public = keys.public_key_from_pem(file.read(keys.MAX_PEM + 1))
        if mine is not None and keys.public_bytes(mine) != public:
            raise failures.Refused(f"{kept} does not belong to {given}; choose another directory")
        return public, False
    if mine is not None:  # an earlier run got as far as this
        return keys.public_bytes(mine), False
    made = keys.generate(rng)
    if not dry_run:
        files.write(kept, keys.private_to_pem(made).encode())
    return keys.public_bytes(made), True


async def revoke(target: Target, *, tenant: TenantId | None, operator: OperatorId) -> TenantId:
    """Without a tenant, whichever has it. Says whose it was."""
    async with opened(target) as cluster:
        people = await cluster.operators()
        if tenant is None:
            tenant = _tenant_of(operator, await people.list())
        await people.revoke(tenant, operator)
        return tenant


def _tenant_of(operator: OperatorId, known: Sequence[registration.Registration]) -> TenantId:
    tenants = sorted({each.tenant for each in known if each.operator == operator})
    if not tenants:
        raise failures.Refused(f"operator {operator} is not registered in any tenant; see `cluster operators`")
    if len(tenants) > 1:
        raise failures.Refused(f"operator {operator} is registered for {', '.join(tenants)}; name one with --tenant")
    return tenants[0]


async def everybody(target: Target) -> list[registration.Registration]:
    async with opened(target) as cluster:
        return await (await cluster.operators()).list()
