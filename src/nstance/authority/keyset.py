"""The cluster's CAs and nonce keys, newest first.

Each has a time from which it signs, so that a new one is known everywhere before it is used. The signer is chosen by
when a certificate was *issued*, not by now: issuing it again after a rotation gives the same bytes. Servers' own
certificates come from the oldest CA instead, because a client that missed a rotation knows only that one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nstance.authority import errors
from nstance.model.ids import ClusterId, ShardId
from nstance.pki import ca, fields, keys, nonce

VERSION = 1


class _Dated(Protocol):
    @property
    def signs_from(self) -> int: ...


D = TypeVar("D", bound=_Dated)


@dataclass(frozen=True, slots=True)
class DatedCa:
    ca: ca.CertificateAuthority
    signs_from: int


@dataclass(frozen=True, slots=True)
class DatedKey:
    key: Ed25519PrivateKey = field(repr=False)
    signs_from: int

    @property
    def public(self) -> bytes:
        return keys.public_bytes(self.key)

    @property
    def kid(self) -> str:
        return nonce.key_id(self.public)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """All CAs and nonce keys. It is immutable: to notice rotations, open it again (every few minutes, and on
    `nonce.UnknownKeyError`)."""

    cluster: ClusterId
    cas: Sequence[DatedCa]
    nonce_keys: Sequence[DatedKey]

    @property
    def publics(self) -> Mapping[str, bytes]:
        """The nonce keys that sign tokens, by key ID."""
        return {dated.kid: dated.public for dated in self.nonce_keys}

    @property
    def bundle(self) -> str:
        """The CA certificates in PEM, newest first, for clients to trust."""
        return "".join(dated.ca.pem for dated in self.cas)

    def signer(self, issued: float) -> ca.CertificateAuthority:
        """The CA for agents', operators' and workload certificates issued at that time."""
        return _signing(self.cas, issued).ca

    def server_signer(self, now: float) -> ca.CertificateAuthority:
        """The CA for servers' certificates: the oldest that has not expired."""
        valid = [dated.ca for dated in self.cas if dated.ca.expires > now]
        return valid[-1] if valid else self.cas[0].ca

    def sign_nonce(self, claims: nonce.Claims) -> str:
        dated = _signing(self.nonce_keys, claims.issued)
        return nonce.sign(claims, dated.key, dated.kid)

    def verify_agent_nonce(self, token: str, *, now: float, shard: ShardId) -> nonce.AgentClaims:
        return nonce.verify_agent(token, keys=self.publics, now=now, cluster=self.cluster, shard=shard)

    def verify_operator_nonce(self, token: str, *, now: float) -> nonce.OperatorClaims:
        return nonce.verify_operator(token, keys=self.publics, now=now, cluster=self.cluster)


def _signing(newest_first: Sequence[D], issued: float) -> D:
    return next((dated for dated in newest_first if dated.signs_from <= issued), newest_first[-1])


def dump_cas(cluster: ClusterId, cas: Sequence[DatedCa]) -> bytes:
    entries = [
        {"certificate": dated.ca.pem, "key": keys.private_to_pem(dated.ca.key), "signs_from": dated.signs_from}
        for dated in cas
    ]
    return json.dumps({"v": VERSION, "cluster": cluster, "cas": entries}).encode()


def load_cas(plain: bytes, *, cluster: ClusterId, name: str) -> list[DatedCa]:
    entries = _entries(plain, "cas", cluster, name)
    try:
        cas = [DatedCa(ca.load_ca(_text(e, "certificate"), _text(e, "key")), _seconds(e)) for e in entries]
        owners = {dated.ca.cluster for dated in cas}
    except (KeyError, TypeError, keys.UnacceptableKeyError, fields.CertificateError) as error:
        raise _damaged(name, error) from None
    if owners != {cluster}:
        raise errors.WrongClusterError(f"{name} holds a CA of cluster {', '.join(sorted(owners))}, expected {cluster}")
    return cas


def dump_nonce_keys(cluster: ClusterId, nonce_keys: Sequence[DatedKey]) -> bytes:
    entries = [{"key": keys.private_to_pem(dated.key), "signs_from": dated.signs_from} for dated in nonce_keys]
    return json.dumps({"v": VERSION, "cluster": cluster, "keys": entries}).encode()


def load_nonce_keys(plain: bytes, *, cluster: ClusterId, name: str) -> list[DatedKey]:
    entries = _entries(plain, "keys", cluster, name)
    try:
        return [DatedKey(keys.private_key_from_pem(_text(e, "key")), _seconds(e)) for e in entries]
    except (KeyError, TypeError, keys.UnacceptableKeyError) as error:
        raise _damaged(name, error) from None


def _entries(plain: bytes, field: str, cluster: ClusterId, name: str) -> list[dict[str, object]]:
    try:
        document = json.loads(plain)
        version, owner = document["v"], document["cluster"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(name, error) from None
    if version != VERSION:
        raise errors.UnreadableError(
            f"{name} has version {version!r}, this program supports version {VERSION}; upgrade it"
        )
    if owner != cluster:
        raise errors.WrongClusterError(f"{name} belongs to cluster {owner!r}, expected {cluster}")
    entries = document.get(field)
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise errors.UnreadableError(f"{name} is damaged: expected a list of {field}")
    return entries


def _text(entry: dict[str, object], name: str) -> str:
    value = entry[name]
    if not isinstance(value, str):
        raise TypeError(name)
    return value


def _seconds(entry: dict[str, object]) -> int:
    value = entry["signs_from"]
    if type(value) is not int:
        raise TypeError("signs_from")
    return value


def _damaged(name: str, error: Exception) -> errors.UnreadableError:
    """Only the type of the error is shown: its text might quote the secret."""
    return errors.UnreadableError(
        f"{name} can be decrypted but is damaged ({type(error).__name__}); restore it from a backup"
    )
