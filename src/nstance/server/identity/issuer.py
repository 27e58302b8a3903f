"""Issues registration nonces for new instances, and certificates for agents and for this server."""

import base64
import ipaddress
from dataclasses import dataclass

from nstance.authority.keyset import Authority
from nstance.clock import Clock, Rng
from nstance.model.events import Credential
from nstance.model.ids import ShardId
from nstance.model.instance import Instance, Nonce
from nstance.pki import ca, fields, keys, names, nonce


class Issuer:
    def __init__(self, authority: Authority, *, shard: ShardId, clock: Clock, rng: Rng) -> None:
        self.authority = authority
        self._shard = shard
        self._clock = clock
        self._rng = rng

    def new_nonce(self, life: float) -> Nonce:
        """Valid by the wall clock and by the steady clock, because the wall clock may be wrong or be corrected later. The
        instance's record decides how long it may register."""
        wall, steady = self._clock.wall(), self._clock.steady()
        return Nonce(
            jti=nonce.new_jti(self._rng), issued=int(min(wall, steady)), expires=int(max(wall, steady)) + int(life)
        )

    def token(self, instance: Instance) -> str:
        """The instance's registration nonce. The same record gives the same token, byte by byte."""
        assert instance.nonce is not None
        return self.authority.sign_nonce(
            nonce.AgentClaims(
                jti=instance.nonce.jti,
                cluster=self.authority.cluster,
                tenant=instance.tenant,
                instance=instance.id,
                shard=self._shard,
                group=instance.group,
                on_demand=instance.on_demand,
                config_hash=instance.infra_hash,
                issued=instance.nonce.issued,
                expires=instance.nonce.expires,
            )
        )

    def verify(self, token: str) -> nonce.AgentClaims:
        """Accepts a nonce that is valid by either clock. An agent that did not receive its answer registers again, also
        while a clock is wrong."""
        try:
            return self.authority.verify_agent_nonce(token, now=self._clock.steady(), shard=self._shard)
        except nonce.InvalidNonceError:
            return self.authority.verify_agent_nonce(token, now=self._clock.wall(), shard=self._shard)

    def new_certificate(self, public_key: bytes, *, life: float) -> Credential:
        """What a registration or renewal writes into the record, before the certificate is handed out. By the clock that is
        behind, within limits: a certificate that is not valid yet would lock its agent out."""
        wall = self._clock.wall()
        now = min(wall, max(self._clock.steady(), wall - life / 2))
        return Credential(
            public_key=base64.b64encode(public_key).decode(),
            certificate_serial=f"{ca.new_serial(self._rng):x}",
            certificate_expires=float(int(now + life)),
        )

    def public_key(self, instance: Instance) -> bytes:
        return base64.b64decode(instance.public_key)

    def agent_certificate(self, instance: Instance, *, life: float) -> ca.Issued:
        """Made from the record alone, so a repeated call returns the same certificate."""
        assert instance.certificate_expires is not None
        issued = instance.certificate_expires - life
        return self.authority.signer(issued).issue_client(
            names.Agent(self.authority.cluster, instance.tenant, instance.id),
            self.public_key(instance),
            serial=int(instance.certificate_serial, 16),
            issued=issued,
            expires=instance.certificate_expires,
        )


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The key and certificate of this process, in memory only."""

    certificate_pem: str
    key_pem: bytes
    fingerprint: str
    expires: float
    hosts: tuple[str, ...]  # DNS names in the certificate


def server_identity(
    authority: Authority,
    who: names.Server,
    *,
    hosts: list[str],
    clock: Clock,
    rng: Rng,
    key_pem: bytes | None = None,
) -> ServerIdentity:
    """`hosts`: advertised addresses and leader addresses. `key_pem`: the key to keep when renewing."""
    key = keys.private_key_from_pem(key_pem) if key_pem is not None else keys.generate(rng)
    public = keys.public_bytes(key)
    now = clock.wall()
    addresses = tuple(h for h in hosts if is_address(h))
    dns = tuple(dict.fromkeys(["localhost", *(h for h in hosts if h and not is_address(h))]))
    named = fields.Alternatives(dns=dns, ip=addresses)
    issued = authority.server_signer(now).issue_server(
        who, public, named, serial=ca.new_serial(rng), issued=now, expires=now + ca.SERVER_LIFE
    )
    return ServerIdentity(issued.pem, keys.private_to_pem(key).encode(), keys.fingerprint(public), issued.expires, dns)


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
