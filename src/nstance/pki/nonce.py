"""Registration nonces: JWTs in exactly one encoding.

Nstance is the only signer, so a token is valid only if it is byte for byte what `sign` makes of its claims. The header is
compared, never parsed: there is no algorithm to choose. The signature is checked before the claims are read. Reasons are
for the log; callers learn only that the nonce is invalid.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from nstance.clock import Rng
from nstance.model import ids, roles
from nstance.model.ids import ClusterId, GroupName, InstanceId, ShardId, TenantId
from nstance.pki import keys, names

ISSUER = "nstance-server"
LEEWAY_SECONDS = 60
MAX_TOKEN = 2048
OPERATOR_LIFE = 3 * 3600  # seconds

_JTI = re.compile(r"[0-9a-f]{32}")
_HASH = re.compile(r"[0-9A-Za-z:_-]{0,128}")
_LATEST = 1 << 40


class InvalidNonceError(ValueError):
    """The token is rejected; `reason` is for the log only."""

    def __init__(self, reason: str) -> None:
        super().__init__("invalid registration nonce")
        self.reason = reason


class UnknownKeyError(InvalidNonceError):
    """Signed with an unknown key, perhaps one that is newer than this server's copy of the key set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentClaims:
    jti: str
    cluster: ClusterId
    tenant: TenantId
    instance: InstanceId
    shard: ShardId
    group: GroupName
    on_demand: bool
    config_hash: str
    issued: int
    expires: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorClaims:
    jti: str
    cluster: ClusterId
    tenant: TenantId
    issued: int
    expires: int
    role: roles.Role = roles.Role.OPERATOR


Claims = AgentClaims | OperatorClaims


def new_jti(rng: Rng) -> str:
    return f"{rng.bits(128):032x}"


def key_id(public_key: bytes) -> str:
    return keys.fingerprint(public_key)[:16]


def sign(claims: Claims, key: Ed25519PrivateKey, kid: str) -> str:
    """The same claims and key give the same token. Raises InvalidNonceError for claims that `verify_*` would reject."""
    _check(claims)
    signed = f"{_header(kid)}.{_encode(_payload(claims))}"
    return f"{signed}.{_encode(key.sign(signed.encode()))}"


def verify_agent(
    token: str, *, keys: Mapping[str, bytes], now: float, cluster: ClusterId, shard: ShardId
) -> AgentClaims:
    claims = _verify(token, keys, now, cluster)
    if not isinstance(claims, AgentClaims):
        raise InvalidNonceError("expected an agent's nonce, found an operator's")
    if claims.shard != shard:
        raise InvalidNonceError(f"expected shard {shard}, found {claims.shard}")
    return claims


def verify_operator(token: str, *, keys: Mapping[str, bytes], now: float, cluster: ClusterId) -> OperatorClaims:
    claims = _verify(token, keys, now, cluster)
    if not isinstance(claims, OperatorClaims):
        raise InvalidNonceError("expected an operator's nonce, found an agent's")
    return claims


def unverified(token: str) -> Claims:
    """The claims of a token, for its holder's error messages only: never trust them. Raises InvalidNonceError."""
    return _parse(_decode(_split(token)[1]))


def _split(token: str) -> list[str]:
    parts = token.split(".") if len(token) <= MAX_TOKEN and token.isascii() else []
    if len(parts) != 3:
        raise InvalidNonceError(f"expected three parts of ASCII and at most {MAX_TOKEN} characters")
    return parts


def _verify(token: str, keys: Mapping[str, bytes], now: float, cluster: ClusterId) -> Claims:
    header, body, tail = _split(token)
    public = next((public for kid, public in keys.items() if _header(kid) == header), None)
    if public is None:
        raise UnknownKeyError("unknown header or signing key")
    payload, signature = _decode(body), _decode(tail)
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, f"{header}.{body}".encode())
    except InvalidSignature:
        raise InvalidNonceError("wrong signature") from None
    claims = _parse(payload)
    if claims.cluster != cluster:
        raise InvalidNonceError(f"expected cluster {cluster}, found {claims.cluster}")
    if not claims.issued - LEEWAY_SECONDS <= now < claims.expires + LEEWAY_SECONDS:
        raise InvalidNonceError(f"valid from {claims.issued} to {claims.expires}, now it is {now:.0f}")
    return claims


def _parse(payload: bytes) -> Claims:
    try:
        raw: dict[str, Any] = json.loads(payload)
        common: dict[str, Any] = {
            "jti": raw["jti"],
            "cluster": raw["cluster_id"],
            "tenant": raw["tenant"],
            "issued": raw["iat"],
            "expires": raw["exp"],
        }
        claims: Claims
        if raw["kind"] == names.Role.AGENT.value:
            own = {name: raw[name] for name in ("shard", "group", "on_demand", "config_hash")}
            claims = AgentClaims(instance=raw["sub"], **common, **own)
        else:
            claims = OperatorClaims(**common, role=roles.Role(raw.get("role", roles.Role.OPERATOR.value)))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidNonceError(f"the claims cannot be read: {type(error).__name__}") from None
    _check(claims)
    # Also covers what was not read above: issuer, nbf, an operator's subject, unknown and duplicate claims.
    if _payload(claims) != payload:
        raise InvalidNonceError("the claims are not in the canonical encoding")
    return claims


def _check(claims: Claims) -> None:
    """All claims, types included: they may come from JSON."""
    texts = [claims.cluster, claims.tenant]
    numbers = [claims.issued, claims.expires]
    if isinstance(claims, AgentClaims):
        texts += [claims.shard, claims.group]
        if not isinstance(claims.instance, str) or not names.is_agent_id(claims.instance):
            raise InvalidNonceError("the subject is not an instance ID")
        if not isinstance(claims.on_demand, bool):
            raise InvalidNonceError("on_demand is not a boolean")
        if not isinstance(claims.config_hash, str) or _HASH.fullmatch(claims.config_hash) is None:
            raise InvalidNonceError("config_hash is not a hash")
    if not isinstance(claims.jti, str) or _JTI.fullmatch(claims.jti) is None:
        raise InvalidNonceError("jti is not 128 bits in hexadecimal")
    if not all(isinstance(text, str) and ids.is_name(text) for text in texts):
        raise InvalidNonceError("cluster, tenant, shard or group is not a name")
    if not all(type(number) is int for number in numbers) or not 0 < claims.issued <= claims.expires < _LATEST:
        raise InvalidNonceError("iat or exp is not a time, or exp lies before iat")


def _payload(claims: Claims) -> bytes:
    if isinstance(claims, AgentClaims):
        role, subject = names.Role.AGENT, str(claims.instance)
        own: dict[str, object] = {
            "shard": claims.shard,
            "group": claims.group,
            "on_demand": claims.on_demand,
            "config_hash": claims.config_hash,
        }
    else:
        role, subject, own = names.Role.OPERATOR, str(claims.cluster), {}
        if claims.role is not roles.Role.OPERATOR:
            own = {"role": claims.role.value}
    return _json(
        {
            "jti": claims.jti,
            "iss": ISSUER,
            "sub": subject,
            "kind": role.value,
            "cluster_id": claims.cluster,
            "tenant": claims.tenant,
            "iat": claims.issued,
            "nbf": claims.issued,
            "exp": claims.expires,
            **own,
        }
    )


def _header(kid: str) -> str:
    return _encode(_json({"alg": "EdDSA", "typ": "JWT", "kid": kid}))


def _json(value: dict[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    """The library skips foreign characters and spare bits; encoding again shows whether it did."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        data = b""
    if not data or _encode(data) != text:
        raise InvalidNonceError("a part is not canonical base64url")
    return data
