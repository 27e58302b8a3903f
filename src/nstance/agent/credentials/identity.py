"""The identity directory: this instance's key, certificate, nonce, CA and shard.

`ca.crt` and `nonce.jwt` come with the userdata. `identity.key` is generated here and is on disk before it is used, so
that a lost answer can be requested again with the same key. `shard` names the shard whose servers are trusted. The trap:
a machine image made from a running instance contains its identity. A certificate for another instance is deleted
together with its key, because a key belongs to one instance only.
"""

import base64
import binascii
import json
import logging
import stat
from dataclasses import dataclass

from nstance.agent.credentials import certificates, key_generation
from nstance.agent.files.folder import Folder, SetupError
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
    """A registration token and its claims. Only a server can verify it; the agent reads which server to expect."""

    token: str
    cluster: ClusterId
    shard: ShardId


@dataclass(frozen=True, slots=True)
class StoredCertificate:
    identity: names.Agent
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
            raise SetupError(f"expected the cluster's CA certificate at {self._folder.path / CA}; userdata writes it")
        try:
            text = pem.decode("ascii")
            tls.client_context(ca_pem=text)
        except ValueError as error:
            raise SetupError(f"expected PEM certificates in {self._folder.path / CA}") from error
        return text

    def key_pem(self) -> bytes | None:
        return self._folder.read(KEY)

    def key_pair(self, nonce: Nonce, make: key_generation.KeyMaker) -> key_generation.KeyPair:
        """The identity key, generated if missing, with the proof for a registration. On disk before it is returned."""
        stored = self.key_pem()
        try:
            pair = make({KEY: key_generation.KeyRequest(stored, nonce.cluster, nonce.token)})[KEY]
        except key_generation.KeyGenerationError as error:
            where = self._folder.path / KEY
            raise SetupError(f"{error}; remove {where} only if the instance never registered") from error
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
                raise ValueError("not a cluster or shard name")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SetupError(f"expected an agent's registration nonce in {self._folder.path / NONCE}") from error
        if subject != self._instance:
            raise SetupError(f"the nonce is for instance {subject[:40]!a}, but NSTANCE_INSTANCE_ID is {self._instance}")
        return Nonce(token, ClusterId(cluster), ShardId(shard))

    def certificate(self) -> StoredCertificate | None:
        """The certificate on disk, even if it has expired, if it is this instance's and fits the key."""
        pem = self._folder.read(CERTIFICATE)
        if pem is None:
            return None
        try:
            stored = self._read(pem.decode("ascii"), self.ca_pem(), self.key_pem())
        except ValueError as error:
            log.warning("certificate on disk is unusable", extra={"reason": error})
            return None
        if stored.identity.id != self._instance:
            log.warning("identity of another instance deleted", extra={"instance": stored.identity.id})
            for name in (CERTIFICATE, KEY, SHARD):
                self._folder.remove(name)
            return None
        return stored

    def accept(self, certificate_pem: str, ca_bundle_pem: str) -> StoredCertificate:
        """Check the certificate that a server has issued, and store it. Raises SetupError: then nothing is stored."""
        try:
            issued = self._read(certificate_pem, ca_bundle_pem, self.key_pem())
            if issued.identity.id != self._instance:
                raise ValueError(f"it is for instance {issued.identity.id}")
        except ValueError as error:
            raise SetupError(f"the server issued an unusable certificate: {error}") from error
        # The bundle first: it contains the old CA too, so the old certificate still fits it.
        if ca_bundle_pem.encode() != self._folder.read(CA):
            self._folder.write(CA, ca_bundle_pem.encode(), mode=self._ca_mode())
        self._folder.write(CERTIFICATE, certificate_pem.encode())
        return issued

    def delete_nonce(self) -> None:
        if self._folder.read(NONCE) is not None:
            self._folder.remove(NONCE)

    def shard(self) -> ShardId | None:
        text = (self._folder.read(SHARD) or b"").decode("ascii", "replace").strip()
        return ShardId(text) if ids.is_name(text) else None

    def store_shard(self, shard: ShardId) -> None:
        self._folder.write(SHARD, shard.encode() + b"\n")

    def _ca_mode(self) -> int:
        """Workloads read the CA certificate too, so the new file keeps the permissions of the old one."""
        with self._folder.enter() as inside:
            status = inside.status(CA)
        return self._folder.mode if status is None else stat.S_IMODE(status.st_mode) & 0o664 | 0o600

    @staticmethod
    def _read(pem: str, ca_pem: str, key_pem: bytes | None) -> StoredCertificate:
        """Raises ValueError, also if the certificate and the key do not belong together."""
        if key_pem is None:
            raise ValueError("its key is missing")
        tls.client_context(ca_pem=ca_pem, certificate_pem=pem, key_pem=key_pem)
        der, certificate = certificates.leaf(pem.encode())
        identity = certificates.identify(der)
        if not isinstance(identity, names.Agent):
            raise ValueError("it is not an agent's")
        return StoredCertificate(identity, pem, certificate.not_before, certificate.not_after)


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
