"""Logging in with an identity provider: the whole way, and every way that must fail."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDictProxy

from component.http_world import get_json
from component.login_world import Logins, logins, settings
from nstance.admin.http.oidc import provider as providers
from nstance.clock import SystemClock
from support import oidc_provider
from support.oidc_provider import CLIENT, SECRET, OidcProvider


@contextlib.asynccontextmanager
async def here(tmp_path: Path) -> AsyncIterator[tuple[Logins, OidcProvider]]:
    async with oidc_provider.running(SystemClock().wall) as provider:
        found = settings(provider.issuer, client=CLIENT, secret=SECRET)
        async with logins(tmp_path, found) as site:
            yield site, provider


async def test_a_person_logs_in_and_has_the_role_and_tenant_of_the_group(tmp_path: Path) -> None:
    async with here(tmp_path) as (site, provider):
        browser = site.browser
        problem = await get_json(browser, "/v1/session", 401)
        assert problem["login"] == {"provider": "/v1/login"}
        async with browser.get("/v1/login", allow_redirects=False) as answer:
            _check_cookie(answer.headers, "nstance-login=", "HttpOnly", "SameSite=Lax", "Path=/v1/login")
            query = await site.at_provider(answer.headers["Location"])
        async with browser.get(f"/v1/login/callback?{query}", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (302, "/")
            _check_cookie(answer.headers, "nstance-session=", "HttpOnly", "SameSite=Strict", "Path=/")
        headers = {"Sec-Fetch-Site": "same-origin"}
        async with browser.get("/v1/session", headers=headers) as answer:
            session = await answer.json()
        found = {name: session[name] for name in ("person", "role", "tenant", "can_change")}
        assert found == {"person": "ada@example.com", "role": "admin", "tenant": "acme", "can_change": True}
        scale = {"params": {"all_shards": "true"}, "json": {"size": 2}}
        async with browser.post("/v1/groups/web-acme/scale", **scale) as answer:  # type: ignore[arg-type]
            assert answer.status == 403  # without the token against forged requests
        headers = {"X-CSRF-Token": session["csrf_token"]}
        async with browser.post("/v1/groups/web-acme/scale", headers=headers, **scale) as answer:  # type: ignore[arg-type]
            assert answer.status == 200, await answer.text()
        events = (await get_json(browser, "/v1/events"))["events"]
        assert any("for ada@example.com" in event["message"] for event in events)

        async with browser.delete("/v1/session"):
            pass
        provider.person["groups"] = ["authors"]
        assert (await site.log_in())[0] == 302
        session = await get_json(browser, "/v1/session")
        assert (session["role"], session["tenant"], session["can_change"]) == ("viewer", "globex", False)
        assert [each["group"] for each in (await get_json(browser, "/v1/groups"))["groups"]] == ["web-globex"]


def _check_cookie(headers: CIMultiDictProxy[str], *words: str) -> None:
    found = [cookie for cookie in headers.getall("Set-Cookie") if cookie.startswith(words[0])]
    assert len(found) == 1
    assert all(word in found[0] for word in words), found


@pytest.mark.parametrize(
    ("twist", "reason"),
    [
        (lambda claims: claims.update(aud="other"), "not for the client"),
        (lambda claims: claims.update(iss="https://other.example"), "expected the issuer"),
        (lambda claims: claims.update(nonce="other"), "not the answer to this login"),
        (lambda claims: claims.update(exp=1), "has expired"),
        (lambda claims: claims.update(groups=["other"]), "none of the groups"),
        (lambda claims: claims.pop("groups"), "none of the groups"),
        (lambda claims: claims.update(email_verified=False), "has not verified"),
        (lambda claims: claims.update(email="two words"), "no name that the history can hold"),
        (lambda claims: claims.pop("email"), "no name that the history can hold"),
    ],
)
async def test_a_token_that_says_something_else_gives_no_session(
    tmp_path: Path, twist: Callable[[dict[str, Any]], None], reason: str
) -> None:
    async with here(tmp_path) as (site, provider):
        provider.twist = twist
        status, text = await site.log_in()
        assert status == 403
        assert reason in text
        await get_json(site.browser, "/v1/session", 401)


async def test_the_answer_to_another_login_is_rejected(tmp_path: Path) -> None:
    async with here(tmp_path) as (site, _):
        assert (await site.back("code=x&state=y"))[0] == 400  # nobody began
        query = await site.at_provider(await site.begin())
        other = await site.at_provider(await site.begin())  # the browser remembers only this one
        assert (await site.back(query))[0] == 400
        assert (await site.back(other.replace("iss=", "iss=x")))[0] == 400
        assert (await site.back("error=access_denied&" + other.replace("code=", "session_state=")))[0] == 403
        assert (await site.back(other))[0] == 302
        assert (await site.back(other))[0] == 400  # the login is over
        stolen = await site.at_provider(await site.begin())
        await site.begin()  # another browser, so to say: another verifier
        assert (await site.back(stolen))[0] == 400


async def test_keys_are_read_again_when_the_provider_has_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "MIN_KEYS_AGE_SECONDS", 0.0)
    async with here(tmp_path) as (site, provider):
        for _ in range(2):
            assert (await site.log_in())[0] == 302
        assert provider.reads == ["discovery", "keys"]
        provider.kid = "next"
        assert (await site.log_in())[0] == 403  # it is not published
        provider.published = ["rsa", "next"]
        assert (await site.log_in())[0] == 302
        provider.published, provider.kid = ["ec"], "ec"
        assert (await site.log_in())[0] == 302
        provider.kid = "rsa"
        assert (await site.log_in())[0] == 403  # it was withdrawn


async def test_a_provider_that_does_not_answer_or_is_another_one_is_named(tmp_path: Path) -> None:
    async with here(tmp_path) as (site, provider):
        provider.issuer += "/other"
        async with site.browser.get("/v1/login", allow_redirects=False) as answer:
            assert answer.status == 502
            assert "expected the issuer" in await answer.text()
    nobody = settings("http://127.0.0.1:1", client=CLIENT, secret=SECRET)
    async with (
        logins(tmp_path / "second", nobody) as site,
        site.browser.get("/v1/login", allow_redirects=False) as answer,
    ):
        assert answer.status == 502
        assert "does not answer" in await answer.text()
