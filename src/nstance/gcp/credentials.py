"""Where the access token for Google Cloud comes from, in the order that every Google tool uses.

The file that GOOGLE_APPLICATION_CREDENTIALS names, gcloud's own file, the metadata server. A file holds the key of a
service account, a workload identity federation, or a user's login.
"""

import asyncio
import calendar
import json
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from nstance.clock import Clock
from nstance.clouds.errors import CredentialsError
from nstance.gcp import jwt
from nstance.gcp.errors import parse_error
from nstance.gcp.metadata import Metadata, MetadataError
from nstance.http_client import Proxies, read_body

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
REFRESH_BEFORE_SECONDS = 225.0  # the metadata server gives the same token until shortly before its end
REQUEST_SECONDS = 10.0
MAX_BYTES = 256 * 1024
_TOKEN_URL = "https://oauth2.googleapis.com/token"
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    expires: float  # seconds since 1970

    def __repr__(self) -> str:
        return f"Token(expires={self.expires})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Looks for credentials wherever this machine may have them."""

    session: Callable[[], aiohttp.ClientSession]
    proxies: Proxies
    environment: Mapping[str, str]
    clock: Clock

    async def fetch(self) -> Token:
        path, found = self.read_file()
        if found is None:
            return await self._of_metadata()
        match found.get("type"):
            case "service_account":
                return await self._of_service_account(found, path)
            case "external_account":
                return await self._of_federation(found, path)
            case "authorized_user":
                params = {name: str(found.get(name) or "") for name in ("client_id", "client_secret", "refresh_token")}
                return await self._exchange(_TOKEN_URL, {**params, "grant_type": "refresh_token"})
            case other:
                raise CredentialsError(
                    f"{path}: expected credentials of the type service_account, external_account or authorized_user, "
                    f"found {str(other)[:60]!r}"
                )

    def read_file(self) -> tuple[str, Mapping[str, Any] | None]:
        """The path of the credentials file and what is in it; None if there is none."""
        path = self.environment.get("GOOGLE_APPLICATION_CREDENTIALS", "")
        if not path:
            folder = self.environment.get("CLOUDSDK_CONFIG") or f"{self.environment.get('HOME', '')}/.config/gcloud"
            path = f"{folder}/application_default_credentials.json"
            if not Path(path).exists():
                return "", None
        found = _json(_read(path))
        if not found:
            raise CredentialsError(f"{path}: expected credentials as JSON")
        return path, found

    async def _of_metadata(self) -> Token:
        metadata = Metadata(self.session, self.environment)
        try:
            answer = await metadata.get("instance/service-accounts/default/token")
        except MetadataError as problem:
            raise CredentialsError(
                f"no credentials for Google Cloud: GOOGLE_APPLICATION_CREDENTIALS is not set, and {problem}"
            ) from problem
        return self._token(_json(answer), "the metadata server")

    async def _of_service_account(self, found: Mapping[str, Any], path: str) -> Token:
        url, now = str(found.get("token_uri") or _TOKEN_URL), int(self.clock.wall())
        claims = {"iss": found.get("client_email"), "scope": SCOPE, "aud": url, "iat": now, "exp": now + 3600}
        try:
            assertion = jwt.sign(claims, str(found.get("private_key") or ""), key_id=str(found.get("private_key_id")))
        except ValueError as problem:
            raise CredentialsError(f"{path}: the private key cannot be read: {problem}") from problem
        return await self._exchange(url, {"grant_type": _JWT_BEARER, "assertion": assertion})

    async def _of_federation(self, found: Mapping[str, Any], path: str) -> Token:
        params = {
            "grant_type": _EXCHANGE,
            "audience": str(found.get("audience") or ""),
            "scope": SCOPE,
            "requested_token_type": _ACCESS_TOKEN,
            "subject_token_type": str(found.get("subject_token_type") or ""),
            "subject_token": await self._subject_token(found.get("credential_source"), path),
        }
        token = await self._exchange(str(found.get("token_url") or "https://sts.googleapis.com/v1/token"), params)
        impersonation = found.get("service_account_impersonation_url")
        if not impersonation:
            return token
        headers = {"authorization": f"Bearer {token.text}", "content-type": "application/json"}
        answer = await self._request("POST", str(impersonation), headers, json.dumps({"scope": [SCOPE]}).encode())
        return self._token(_json(answer), str(impersonation))

    async def _subject_token(self, source: Any, path: str) -> str:
        """The token of the other side, which Google exchanges."""
        source = source if isinstance(source, dict) else {}
        if source.get("file"):
            text = _read(str(source["file"])).strip()
        elif source.get("url"):
            given = source.get("headers")
            headers = {str(name): str(value) for name, value in given.items()} if isinstance(given, dict) else {}
            text = (await self._request("GET", str(source["url"]), headers)).strip()
        else:
            raise CredentialsError(
                f"{path}: expected a credential_source with a file or a url; other kinds are not supported"
            )
        form = source.get("format") or {}
        if isinstance(form, dict) and form.get("type") == "json":
            name = str(form.get("subject_token_field_name") or "")
            text = str(_json(text).get(name) or "")
        if not text:
            raise CredentialsError(f"{path}: its credential_source gave an empty token")
        return text

    async def _exchange(self, url: str, params: Mapping[str, str]) -> Token:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer = await self._request("POST", url, headers, urllib.parse.urlencode(params).encode())
        return self._token(_json(answer), url)

    async def _request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> str:
        try:
            async with (
                asyncio.timeout(REQUEST_SECONDS),
                self.session().request(
                    method, url, headers=headers, data=body, allow_redirects=False, proxy=self.proxies.find(url)
                ) as reply,
            ):
                text = await read_body(reply.content, MAX_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
            raise CredentialsError(f"no answer from {url}: {str(problem) or 'timed out'}") from problem
        if reply.status != 200:
            raise CredentialsError(f"no credentials for Google Cloud: {url}: {parse_error(reply.status, text)}")
        return text.decode("utf-8", "replace")

    def _token(self, found: Mapping[str, Any], where: str) -> Token:
        text = found.get("access_token") or found.get("accessToken")
        if not isinstance(text, str):
            raise CredentialsError(f"no credentials for Google Cloud: {where} answered without a token")
        if expires := found.get("expireTime"):
            return Token(text, _time(str(expires)))
        seconds = found.get("expires_in")
        return Token(text, self.clock.wall() + (float(seconds) if isinstance(seconds, int | float) else 3600.0))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as problem:
        raise CredentialsError(f"failed to read the credentials file {path}: {problem}") from problem


def _json(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _time(text: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        raise CredentialsError(f"expected a time like 2026-01-02T03:04:05Z, found {text[:60]!r}") from None
