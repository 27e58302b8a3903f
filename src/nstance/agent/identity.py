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

from nstance.agent import certificates, keywork
from nstance.agent.folder import Folder, Unusable
from nstance.model import ids
from nstance.model.ids import ClusterId, InstanceId, ShardId
from nstance.pki import names
from nstance.wire import tls

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
    def __init__(self, folder: Folder, *, instance: InstanceId) -> None:
        self._folder = folder
        self._instance = instance

    def ca_pem(self) -> str:
        pem = self._folder.read(CA)
        if pem is None:
            raise Unusable(
                f"expected the cluster's CA certificate at {self._folder.path / CA}; userdata writes it there"
            )
        try:
            text = pem.decode("ascii")
            tls.client_context(ca_pem=text)
        except ValueError as error:
            raise Unusable(f"expected PEM certificates in {self._folder.path / CA}") from error
        return text

    def key_pem(self) -> bytes | None:
        return self._folder.read(KEY)

    def pair(self, nonce: Nonce, make: keywork.Maker) -> keywork.Pair:
        """The identity key, made unless there, with the proof for a registration. On disk before it is returned."""
        stored = self.key_pem()
        try:
            pair = make({KEY: keywork.Wish(stored, nonce.cluster, nonce.token)})[KEY]
        except keywork.Failed as error:
            where = self._folder.path / KEY
            raise Unusable(f"{error}; remove {where} only if the instance never registered") from error
        if stored is None:
            self._folder.write(KEY, pair.private_pem, mode=0o600)
        return pair

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
            certified = self._read(pem.decode("ascii"), self.ca_pem(), self.key_pem())
        except ValueError as error:
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

    def accept(self, certificate_pem: str, ca_bundle_pem: str) -> Certified:
        """Check what a server has issued and keep it. Raises Unusable: then nothing is kept."""
        try:
            certified = self._read(certificate_pem, ca_bundle_pem, self.key_pem())
            if certified.who.id != self._instance:
                raise ValueError(f"it is for instance {certified.who.id}")
        except ValueError as error:
            raise Unusable(f"the server issued a certificate that is of no use: {error}") from error
        # The bundle first: it contains the old CA too, so the old certificate goes with it as well.
        if ca_bundle_pem.encode() != self._folder.read(CA):
            self._folder.write(CA, ca_bundle_pem.encode(), mode=self._ca_mode())
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

    @staticmethod
    def _read(pem: str, ca_pem: str, key_pem: bytes | None) -> Certified:
        """Raises ValueError, also if the certificate and the key do not belong together."""
        if key_pem is None:
            raise ValueError("its key is missing")
        tls.client_context(ca_pem=ca_pem, certificate_pem=pem, key_pem=key_pem)
        der, certificate = certificates.leaf(pem.encode())
        who = certificates.identify(der)
        if not isinstance(who, names.Agent):
            raise ValueError("it is not an agent's")
        return Certified(who, pem, certificate.not_before, certificate.not_after)


def _claims(token: str) -> dict[str, object]:
    parts = token.split(".")
    if len(token) > MAX_NONCE or len(parts) != 3:
        raise ValueError("not three parts")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except binascii.Error as error:
        raise ValueError("not base64") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(claims, dict):
        raise ValueError("no claims")
    return claims
