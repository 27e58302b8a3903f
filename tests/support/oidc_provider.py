"""A small identity provider with real keys over real HTTP: discovery, keys, a login without questions, and tokens.

It checks what a client sends, PKCE included, and `twist` lets a test change what it answers.
"""

import base64
import contextlib
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlencode

from aiohttp import web
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

CLIENT, SECRET = "nstance", "a secret/with:signs"
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
_RSA_NEXT = rsa.generate_private_key(public_exponent=65537, key_size=2048)
_EC = ec.generate_private_key(ec.SECP256R1())
_ED = ed25519.Ed25519PrivateKey.generate()
KEYS: dict[str, tuple[str, Key]] = {
    "rsa": ("RS256", _RSA),
    "pss": ("PS256", _RSA),
    "next": ("RS256", _RSA_NEXT),
    "ec": ("ES256", _EC),
    "ed": ("EdDSA", _ED),
}


def encode(data: bytes | dict[str, Any]) -> str:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def _number(value: int) -> str:
    return encode(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def jwk(kid: str) -> dict[str, str]:
    algorithm, key = KEYS[kid]
    common = {"kid": kid, "use": "sig", "alg": algorithm}
    if isinstance(key, rsa.RSAPrivateKey):
        numbers = key.public_key().public_numbers()
        return {**common, "kty": "RSA", "n": _number(numbers.n), "e": _number(numbers.e)}
    if isinstance(key, ec.EllipticCurvePrivateKey):
        point = key.public_key().public_numbers()
        x, y = (encode(value.to_bytes(32, "big")) for value in (point.x, point.y))
        return {**common, "kty": "EC", "crv": "P-256", "x": x, "y": y}
    return {**common, "kty": "OKP", "crv": "Ed25519", "x": encode(key.public_key().public_bytes_raw())}


def sign(claims: dict[str, Any], kid: str = "rsa", /, **header: Any) -> str:
    algorithm, key = KEYS[kid]
    signed = f"{encode({'alg': algorithm, 'typ': 'JWT', 'kid': kid, **header})}.{encode(claims)}"
    return f"{signed}.{encode(_signature(key, algorithm, signed.encode()))}"


def _signature(key: Key, algorithm: str, signed: bytes) -> bytes:
    if isinstance(key, rsa.RSAPrivateKey):
        pss = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
        return key.sign(signed, pss if algorithm == "PS256" else padding.PKCS1v15(), hashes.SHA256())
    if isinstance(key, ec.EllipticCurvePrivateKey):
        r, s = decode_dss_signature(key.sign(signed, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")
    return key.sign(signed)


@dataclass
class OidcProvider:
    now: Callable[[], float]
    issuer: str = ""
    kid: str = "rsa"  # that it signs with now
    published: list[str] = field(default_factory=lambda: ["rsa"])
    person: dict[str, Any] = field(
        default_factory=lambda: {
            "sub": "42",
            "email": "ada@example.com",
            "email_verified": True,
            "groups": ["platform"],
        }
    )
    twist: Callable[[dict[str, Any]], None] = lambda claims: None
    reads: list[str] = field(default_factory=list)
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    async def discovery(self, request: web.Request) -> web.Response:
        self.reads.append("discovery")
        found = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/auth",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "code_challenge_methods_supported": ["S256"],
        }
        return web.json_response(found)

    async def keys(self, request: web.Request) -> web.Response:
        self.reads.append("keys")
        return web.json_response({"keys": [jwk(kid) for kid in self.published]})

    async def auth(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        assert (query["response_type"], query["client_id"]) == ("code", CLIENT)
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe()
        self._codes[code] = query
        answer = urlencode({"code": code, "state": query["state"], "iss": self.issuer})
        raise web.HTTPFound(f"{query['redirect_uri']}?{answer}")

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        user, _, password = base64.b64decode(request.headers["Authorization"].split()[1]).decode().partition(":")
        begun = self._codes.pop(str(form["code"]), None)
        challenge = encode(hashlib.sha256(str(form["code_verifier"]).encode()).digest())
        is_client = (unquote(user), unquote(password)) == (CLIENT, SECRET)
        if not is_client or begun is None or begun["code_challenge"] != challenge:
            return web.json_response({"error": "invalid_grant"}, status=400)
        assert form["redirect_uri"] == begun["redirect_uri"]
        now = int(self.now())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": begun["nonce"],
            **self.person,
        }
        self.twist(claims)
        return web.json_response({"id_token": sign(claims, self.kid), "access_token": "x", "token_type": "Bearer"})


@contextlib.asynccontextmanager
async def running(now: Callable[[], float]) -> AsyncIterator[OidcProvider]:
    provider = OidcProvider(now)
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", provider.discovery)
    app.router.add_get("/keys", provider.keys)
    app.router.add_get("/auth", provider.auth)
    app.router.add_post("/token", provider.token)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.issuer = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield provider
    finally:
        await runner.cleanup()
