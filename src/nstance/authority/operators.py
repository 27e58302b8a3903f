"""Registered operators.

A nonce is bound to the first public key that presents it, by a create-only object that also fixes the operator's ID,
serial and times: a repeated request gets the same certificate. The trap: a revoked operator could present its nonce once
more while it is valid, so revoking marks the registration and never deletes it.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import replace

from nstance.authority import errors, registration
from nstance.authority.keyset import Authority
from nstance.authority.registration import Registration
from nstance.clock import Clock, Rng
from nstance.config import storage_keys
from nstance.model import ids, roles
from nstance.model.ids import ClusterId, OperatorId, TenantId
from nstance.objects import errors as storage
from nstance.objects import settle
from nstance.objects.port import Key, ObjectStore, Stored
from nstance.pki import ca, names, nonce

log = logging.getLogger(__name__)


class Operators:
    def __init__(self, store: ObjectStore, *, prefix: str, cluster: ClusterId, clock: Clock, rng: Rng) -> None:
        """`prefix` is that of the cluster's objects, as in `cluster/`."""
        self._store = store
        self._prefix = prefix
        self._cluster = cluster
        self._clock = clock
        self._rng = rng
        self._ids = ids.IdMaker(wall=clock.wall, bits=rng.bits)

    def new_nonce(
        self,
        authority: Authority,
        *,
        tenant: TenantId,
        life: float = nonce.OPERATOR_LIFE,
        role: roles.Role = roles.Role.OPERATOR,
    ) -> str:
        """The caller checks that the tenant exists."""
        now = math.floor(self._clock.wall())
        jti = nonce.new_jti(self._rng)
        expires = math.floor(now + life)
        claims = nonce.OperatorClaims(
            jti=jti, cluster=self._cluster, tenant=tenant, issued=now, expires=expires, role=role
        )
        return authority.sign_nonce(claims)

    async def register(
        self, authority: Authority, claims: nonce.OperatorClaims, public_key: bytes, *, life: float = ca.OPERATOR_LIFE
    ) -> tuple[Registration, ca.Issued]:
        """For verified claims and a key whose proof was checked. Raises NonceUsedError, NotRegisteredError."""
        operator = names.Operator(self._cluster, claims.tenant, self._new_id(), claims.role)
        proposed = self._new(operator, public_key, life, jti=claims.jti)
        key = storage_keys.operator_nonce(claims.jti, prefix=self._prefix)
        bound = await self._create(key, proposed)
        if (bound.tenant, bound.jti) != (claims.tenant, claims.jti):
            raise errors.UnreadableError(f"{key} does not belong to this nonce; it was overwritten")
        if bound.public_key != public_key:
            raise errors.NonceUsedError(
                f"the nonce {claims.jti} of tenant {claims.tenant} was already used with another key"
            )
        _check_live(await self._create(self._key(bound.tenant, bound.operator), bound))
        return bound, self._issue(authority, bound)

    async def register_directly(
        self,
        authority: Authority,
        public_key: bytes,
        *,
        tenant: TenantId,
        operator: OperatorId | None = None,
        life: float = ca.OPERATOR_LIFE,
        role: roles.Role = roles.Role.OPERATOR,
    ) -> tuple[Registration, ca.Issued]:
        """By an administrator, without a nonce. The same operator and key get the same certificate again."""
        identity = names.Operator(self._cluster, tenant, operator or self._new_id(), role)
        proposed = self._new(identity, public_key, life, jti="")
        kept = await self._create(self._key(tenant, proposed.operator), proposed)
        _check_live(kept)
        if kept.public_key != public_key:
            raise errors.ConflictError(f"operator {kept.operator} of tenant {tenant} is registered with another key")
        if kept.role is not role:
            raise errors.ConflictError(
                f"operator {kept.operator} of tenant {tenant} is registered as {kept.role.value}, not as {role.value}; "
                "revoke it and register another"
            )
        return kept, self._issue(authority, kept)

    async def renew(
        self,
        authority: Authority,
        identity: names.Operator,
        public_key: bytes | None,
        *,
        life: float = ca.OPERATOR_LIFE,
    ) -> ca.Issued:
        """For an identified caller. `public_key`: a new key whose proof was checked; None keeps the current one. Raises
        NotRegisteredError."""

        def renewed(old: Registration) -> Registration:
            _check_live(old)
            return self._new(old.identity, public_key or old.public_key, life, jti=old.jti)

        return self._issue(authority, await self._change(identity.tenant, identity.id, renewed))

    async def revoke(self, tenant: TenantId, operator: OperatorId) -> None:
        """Raises NotRegisteredError if there is no such operator; revoking twice is success."""
        now = math.floor(self._clock.wall())
        await self._change(tenant, operator, lambda old: old if old.revoked is not None else replace(old, revoked=now))

    async def is_registered(self, identity: names.Operator) -> bool:
        """Raises storage errors: unknown is not the same as no."""
        key = self._key(identity.tenant, identity.id)
        found = await settle.read(self._store, key)
        return found is not None and self._load(found.body, key).revoked is None

    async def list(self) -> list[Registration]:
        """All readable registrations; damaged ones are logged. Raises storage errors."""
        found = []
        for key in await settle.list_keys(self._store, storage_keys.operator_prefix(prefix=self._prefix)):
            try:
                stored = await settle.read(self._store, key)
                if stored is not None:
                    found.append(self._load(stored.body, key))
            except (errors.UnreadableError, errors.WrongClusterError, storage.ObjectTooLargeError) as problem:
                log.error("failed to read operator registration: %s", problem, extra={"key": key})
        return found

    def _new(self, identity: names.Operator, public_key: bytes, life: float, *, jti: str) -> Registration:
        now = math.floor(self._clock.wall())
        names.uri(identity)  # raises for invalid names
        return Registration(
            cluster=self._cluster,
            tenant=identity.tenant,
            operator=identity.id,
            public_key=public_key,
            serial=ca.new_serial(self._rng),
            issued=now,
            expires=math.floor(now + life),
            jti=jti,
            role=identity.role,
        )

    def _new_id(self) -> OperatorId:
        return OperatorId(self._ids.make(ids.OPERATOR_KIND))

    async def _create(self, key: Key, proposed: Registration) -> Registration:
        """Returns what is stored in the end: the proposal, or an earlier registration."""
        stored = await settle.create_or_adopt(self._store, key, registration.dump(proposed))
        return self._load(stored.body, key)

    async def _change(
        self, tenant: TenantId, operator: OperatorId, change: Callable[[Registration], Registration]
    ) -> Registration:
        key = self._key(tenant, operator)

        def edit(found: Stored | None) -> bytes:
            if found is None:
                raise errors.NotRegisteredError(f"operator {operator} of tenant {tenant} is not registered")
            old = self._load(found.body, key)
            new = change(old)
            return found.body if new == old else registration.dump(new)

        body = await settle.change(self._store, key, edit)
        assert body is not None
        return self._load(body, key)

    def _load(self, body: bytes, key: Key) -> Registration:
        return registration.load(body, key=key, cluster=self._cluster)

    def _key(self, tenant: TenantId, operator: OperatorId) -> Key:
        names.uri(names.Operator(self._cluster, tenant, operator))
        return storage_keys.operator(tenant, operator, prefix=self._prefix)

    @staticmethod
    def _issue(authority: Authority, wanted: Registration) -> ca.Issued:
        signer = authority.signer(wanted.issued)
        return signer.issue_client(
            wanted.identity, wanted.public_key, serial=wanted.serial, issued=wanted.issued, expires=wanted.expires
        )


def _check_live(kept: Registration) -> None:
    if kept.revoked is not None:
        raise errors.NotRegisteredError(f"operator {kept.operator} of tenant {kept.tenant} was revoked")
