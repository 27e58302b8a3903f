"""ID tokens: what is accepted, and everything that is not."""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from nstance.admin import errors
from nstance.admin.http.oidc import id_token, settings
from nstance.admin.http.oidc.id_token import Expected, InvalidTokenError, UnknownKeyError
from nstance.model.roles import Role
from support.oidc_provider import KEYS, encode, jwk, sign

NOW = 1_800_000_000.0
EXPECTED = Expected(issuer="https://id.example", client_id="nstance", nonce="n-1", now=NOW)
CLAIMS: dict[str, Any] = {
    "iss": "https://id.example",
    "aud": "nstance",
    "sub": "42",
    "iat": int(NOW),
    "exp": int(NOW) + 300,
    "nonce": "n-1",
}
PUBLISHED = id_token.read_keys({"keys": [jwk(kid) for kid in KEYS]})


def verified(token: str) -> dict[str, Any]:
    return id_token.verify(token, PUBLISHED, EXPECTED)


def test_a_provider_with_one_key_may_leave_its_id_out() -> None:
    token = sign(CLAIMS, "rsa", kid=None)
    assert id_token.verify(token, {"rsa": PUBLISHED["rsa"]}, EXPECTED) == CLAIMS
    with pytest.raises(InvalidTokenError):
        id_token.verify(token, {"next": PUBLISHED["next"]}, EXPECTED)
    with pytest.raises(InvalidTokenError):
        id_token.verify(token, PUBLISHED, EXPECTED)


@pytest.mark.parametrize("kid", KEYS)
def test_every_supported_algorithm_is_accepted_and_a_changed_token_is_not(kid: str) -> None:
    token = sign(CLAIMS, kid)
    assert verified(token) == CLAIMS
    header, _, signature = token.split(".")
    for forged in (
        f"{header}.{encode({**CLAIMS, 'sub': '1'})}.{signature}",
        token[:-4] + ("AAAA" if token[-4:] != "AAAA" else "BBBB"),
        f"{header}.{token.split('.')[1]}.",
        f"{token}=",
        f"{token}.",
        token + "\n",
        f" {token}",
    ):
        with pytest.raises(InvalidTokenError):
            verified(forged)


def test_none_shared_secrets_and_keys_that_the_token_brings_are_rejected() -> None:
    body = encode(CLAIMS)
    none = f"{encode({'alg': 'none', 'kid': 'rsa'})}.{body}."
    public = json.dumps(jwk("rsa")).encode()
    for name in ("HS256", "HS384", "HS512"):
        header = encode({"alg": name, "kid": "rsa", "typ": "JWT"})
        digest = hmac.new(public, f"{header}.{body}".encode(), hashlib.sha256).digest()
        with pytest.raises(InvalidTokenError, match="signed with"):
            verified(f"{header}.{body}.{encode(digest)}")
    with pytest.raises(InvalidTokenError):
        verified(none)
    with pytest.raises(UnknownKeyError):
        verified(sign(CLAIMS, "rsa", kid="other", jwk=jwk("rsa")))


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "None"},
        {"alg": "nOnE"},
        {"alg": "RS512"},
        {"alg": "PS256"},  # the key says RS256
        {"alg": "ES256"},  # not a key of that kind
        {"alg": ["RS256"]},
        {"alg": None},
        {"kid": None},
        {"kid": ""},
        {"kid": 7},
        {"typ": "at+jwt"},
        {"crit": ["exp"]},
    ],
)
def test_an_odd_header_is_rejected(header: dict[str, Any]) -> None:
    with pytest.raises(InvalidTokenError):
        verified(sign(CLAIMS, "rsa", **header))


@pytest.mark.parametrize(
    "change",
    [
        {"iss": "https://id.example/"},
        {"iss": None},
        {"aud": "other"},
        {"aud": ["other"]},
        {"aud": []},
        {"aud": None},
        {"aud": ["nstance", "other"]},  # without azp
        {"azp": "other"},
        {"nonce": "n-2"},
        {"nonce": ""},
        {"nonce": None},
        {"exp": int(NOW) - 61},
        {"exp": None},
        {"exp": "1900000000"},
        {"exp": True},
        {"exp": 1e300},
        {"iat": int(NOW) + 61},
        {"iat": None},
        {"nbf": int(NOW) + 61},
        {"nbf": None},
        {"sub": ""},
        {"sub": 42},
    ],
)
def test_each_claim_is_checked(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidTokenError):
        verified(sign({**CLAIMS, **change}))


@pytest.mark.parametrize("name", ["iss", "aud", "sub", "iat", "exp", "nonce"])
def test_each_claim_is_required(name: str) -> None:
    with pytest.raises(InvalidTokenError):
        verified(sign({key: value for key, value in CLAIMS.items() if key != name}))


def test_several_audiences_need_the_authorized_party() -> None:
    assert verified(sign({**CLAIMS, "aud": ["other", "nstance"], "azp": "nstance"}))["sub"] == "42"


def test_claims_that_occur_twice_are_rejected() -> None:
    text = json.dumps(CLAIMS)[:-1] + ',"sub":"1"}'
    with pytest.raises(InvalidTokenError):
        verified(sign(text.encode()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [{"use": "enc"}, {"kty": "oct"}, {"kid": ""}, {"n": "AQAB"}, {"e": "!"}, {"alg": "HS256"}, {"kty": None}],
)
def test_keys_that_are_not_for_us_are_skipped(change: dict[str, Any]) -> None:
    found = id_token.read_keys({"keys": [{**jwk("rsa"), **change}, "x", None, jwk("ec")]})
    with pytest.raises(InvalidTokenError):
        id_token.verify(sign(CLAIMS), found, EXPECTED)
    assert id_token.verify(sign(CLAIMS, "ec"), found, EXPECTED) == CLAIMS


GOOD: dict[str, Any] = {
    "issuer": "https://id.example/dex",
    "client_id": "nstance",
    "redirect_url": "https://nstance.example:8443/v1/login/callback",
    "groups": {"platform": {"role": "admin"}, "shop": {"role": "viewer", "tenant": "acme"}},
}


def loaded(tmp_path: Path, raw: Any) -> settings.OidcSettings:
    path = tmp_path / "oidc.json"
    path.write_text(json.dumps(raw))
    return settings.load(path)


def test_the_first_group_of_the_file_that_a_person_has_counts(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden\n")
    found = loaded(tmp_path, {**GOOD, "client_secret_file": "secret"})
    assert found.client_secret == "hidden"
    assert "hidden" not in repr(found)
    right = found.right(["shop", "platform"])
    assert right is not None
    assert (right.role, right.tenant) == (Role.ADMIN, "default")
    assert found.right(["shop"]) == settings.Right(Role.VIEWER, settings.TenantId("acme"))
    for nothing in ([], ["other"], None, "platform", [["platform"]], {"platform": 1}):
        assert found.right(nothing) is None


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "http://id.example"},
        {"issuer": "https://user@id.example"},
        {"issuer": ""},
        {"redirect_url": "https://nstance.example/other"},
        {"redirect_url": "http://nstance.example/v1/login/callback"},
        {"client_id": 7},
        {"scopes": ["email"]},
        {"groups": {}},
        {"groups": {"x": {"role": "root"}}},
        {"groups": {"x": {"role": "viewer", "tenant": "Not A Name"}}},
        {"groups": {"x": "viewer"}},
        {"client_secret": "in the file"},
        {"more": 1},
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(errors.CommandError, match=r"oidc\.json: "):
        loaded(tmp_path, {**GOOD, **change})
