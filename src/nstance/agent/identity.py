"""The identity directory: who this instance is, and what it needs to prove it.

`ca.crt` and `nonce.jwt` come with the userdata; `identity.key` is made here and is on disk before it is shown to
anybody, so that a lost answer can be asked for again with the same key (F8). `shard` remembers whose server may speak.

The trap: a machine image made from a running instance carries its identity along. A certificate for another instance
is put away together with its key, because a key belongs to one instance only.
"""

import base64
import binascii
import json
import logging
import stat
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from nstance.agent.folder import Folder, Unusable
from nstance.clock import Chance
from nstance.model import ids
from nstance.model.ids import ClusterId, InstanceId, ShardId
from nstance.pki import keys, names, peer

CA = "ca.crt"
CERTIFICATE = "identity.crt"
KEY = "identity.key"
NONCE = "nonce.jwt"
SHARD = "shard"
MAX_NONCE = 2048

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Nonce:
    """The token, and what it says of itself. Only a server can verify it; here it says whom to expect."""

    token: str
    cluster: ClusterId
    shard: ShardId


@dataclass(frozen=True, slots=True)
class Certified:
    who: names.Agent
    pem: str
    not_before: float
    not_after: float


class IdentityFolder:
    def __init__(self, folder: Folder, *, instance: InstanceId, chance: Chance) -> None:
        self._folder = folder
        self._instance = instance
        self._chance = chance

    def ca_pem(self) -> str:
        pem = self._folder.read(CA)
        if pem is None:
            raise Unusable(
                f"expected the cluster's CA certificate at {self._folder.path / CA}; userdata writes it there"
            )
        return _ca_bundle(pem, str(self._folder.path / CA))

    def key(self) -> Ed25519PrivateKey:
        """Made unless there."""
        pem = self._folder.read(KEY)
        if pem is None:
            key = keys.generate(self._chance)
            self._folder.write(KEY, keys.private_to_pem(key).encode(), mode=0o600)
            return key
        try:
            return keys.private_key_from_pem(pem)
        except keys.UnacceptableKey as error:
            raise Unusable(
                f"{self._folder.path / KEY}: {error}; remove it only if the instance never registered"
            ) from error

    def nonce(self) -> Nonce | None:
        raw = self._folder.read(NONCE)
        token = (raw or b"").decode("ascii", "replace").strip()
        if not token:
            return None
        try:
            claims = _claims(token)
            subject, cluster, shard = str(claims["sub"]), str(claims["cluster_id"]), str(claims["shard"])
            if not ids.is_name(cluster) or not ids.is_name(shard):
                raise ValueError("a name is not one of ours")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unusable(f"{self._folder.path / NONCE} is no registration nonce for an agent") from error
        if subject != self._instance:
            raise Unusable(f"the nonce is for instance {subject[:40]!a}, but NSTANCE_INSTANCE_ID is {self._instance}")
        return Nonce(token, ClusterId(cluster), ShardId(shard))

    def certified(self) -> Certified | None:
        """The certificate on disk, whatever its dates, if it is this instance's and fits the key."""
        pem = self._folder.read(CERTIFICATE)
        if pem is None:
            return None
        try:
            certified = self._read(pem.decode("ascii"), self.key())
        except (ValueError, Unusable) as error:
            log.warning("the certificate on disk is of no use", extra={"reason": error})
            return None
        if certified.who.id != self._instance:
            log.warning(
                "the identity on disk is another instance's and is put away", extra={"instance": certified.who.id}
            )
            for name in (CERTIFICATE, KEY, SHARD):
                self._folder.remove(name)
            return None
        return certified

    def accept(self, certificate_pem: str, ca_bundle_pem: str, *, key: Ed25519PrivateKey) -> Certified:
        """Check what a server has issued and keep it. Raises Unusable: then nothing is kept."""
        try:
            certified = self._read(certificate_pem, key)
            if certified.who.id != self._instance:
                raise ValueError(f"it is for instance {certified.who.id}")
        except ValueError as error:
            raise Unusable(f"the server issued a certificate that is of no use: {error}") from error
        bundle = _ca_bundle(ca_bundle_pem.encode(), "the CA bundle that the server sent")
        # The bundle first: it contains the old CA too, so the old certificate goes with it as well.
        if bundle.encode() != self._folder.read(CA):
            self._folder.write(CA, bundle.encode(), mode=self._ca_mode())
        self._folder.write(CERTIFICATE, certificate_pem.encode())
        return certified

    def forget_nonce(self) -> None:
        if self._folder.read(NONCE) is not None:
            self._folder.remove(NONCE)

    def shard(self) -> ShardId | None:
        text = (self._folder.read(SHARD) or b"").decode("ascii", "replace").strip()
        return ShardId(text) if ids.is_name(text) else None

    def remember_shard(self, shard: ShardId) -> None:
        self._folder.write(SHARD, shard.encode() + b"\n")

    def _ca_mode(self) -> int:
        """Workloads read the CA certificate too: whoever could read the old file can read the new one."""
        with self._folder.enter() as inside:
            status = inside.status(CA)
        return self._folder.mode if status is None else stat.S_IMODE(status.st_mode) & 0o664 | 0o600

    def _read(self, pem: str, key: Ed25519PrivateKey) -> Certified:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        who = peer.identify(certificate.public_bytes(Encoding.DER))
        if not isinstance(who, names.Agent):
            raise ValueError("it is not an agent's")
        if certificate.public_key() != key.public_key():
            raise ValueError("it does not belong to the identity key")
        return Certified(
            who, pem, certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
        )


def _ca_bundle(pem: bytes, where: str) -> str:
    try:
        x509.load_pem_x509_certificates(pem)
        return pem.decode("ascii")
    except ValueError as error:
        raise Unusable(f"expected PEM certificates in {where}") from error


def _claims(token: str) -> dict[str, object]:
    parts = token.split(".")
    if len(token) > MAX_NONCE or len(parts) != 3:
        raise ValueError("not three parts")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except binascii.Error as error:
        raise ValueError("not base64") from error
    if not isinstance(claims, dict):
        raise ValueError("no claims")
    return claims
