"""Where the keys for AWS come from, in the order that every AWS tool uses.

Environment, web identity (EKS), the shared credentials file, a container's endpoint (ECS, EKS Pod Identity), the metadata
service of the instance (IMDSv2).
"""

import calendar
import configparser
import json
import re
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from nstance.aws.encoding import Answer, form, parse_error, parse_xml
from nstance.aws.endpoints import endpoint
from nstance.aws.metadata import Metadata, MetadataError, request
from nstance.aws.signing import Credentials, Request, sign
from nstance.clouds.errors import CredentialsError

REFRESH_BEFORE_SECONDS = 300.0
_FORM = "application/x-www-form-urlencoded"
_STS_VERSION = "2011-06-15"
_ROLES = "iam/security-credentials/"
ECS = "http://169.254.170.2"
_LOCAL = ("127.0.0.1", "localhost", "::1", "169.254.170.2", "169.254.170.23", "fd00:ec2::23")  # also ECS and EKS
_MAX_SESSION_NAME = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Looks for credentials wherever this machine may have them."""

    session: Callable[[], aiohttp.ClientSession]
    environment: Mapping[str, str]
    region: str
    server: str  # names the session of an assumed role
    endpoint_url: str = ""  # the configured one

    async def fetch(self) -> Credentials:
        env = self.environment
        if env.get("AWS_ACCESS_KEY_ID"):
            secret = env.get("AWS_SECRET_ACCESS_KEY", "")
            if not secret:
                raise CredentialsError("AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not")
            return Credentials(env["AWS_ACCESS_KEY_ID"], secret, env.get("AWS_SESSION_TOKEN", ""))
        if env.get("AWS_WEB_IDENTITY_TOKEN_FILE") and env.get("AWS_ROLE_ARN"):
            return await self._web_identity()
        if (found := self._shared_file()) is not None:
            return found
        if env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") or env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
            return await self._container()
        if env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            raise CredentialsError(
                "no AWS credentials: none in the environment or in the credentials file, and the metadata service is "
                "turned off (AWS_EC2_METADATA_DISABLED)"
            )
        return await self._instance()

    async def assume(self, role_arn: str, *, now: float) -> Credentials:
        """Credentials of a role, which those that are found may assume."""
        params = {"RoleArn": role_arn, "RoleSessionName": self._session_name}
        request = Request(
            url=self._sts,
            headers={"content-type": _FORM},
            body=form("AssumeRole", _STS_VERSION, params),
            service="sts",
            region=self.region,
        )
        headers = sign(request, await self.fetch(), now=now)
        return _of_sts(await self._request("POST", request.url, headers, request.body), "AssumeRoleResult")

    @property
    def _sts(self) -> str:
        return endpoint("sts", self.region, configured=self.endpoint_url, environment=self.environment) + "/"

    @property
    def _session_name(self) -> str:
        name = re.sub(r"[^\w+=,.@-]", "-", f"nstance-{self.server}", flags=re.ASCII)[:_MAX_SESSION_NAME]
        return self.environment.get("AWS_ROLE_SESSION_NAME") or name

    async def _web_identity(self) -> Credentials:
        env = self.environment
        token = _read_token(env["AWS_WEB_IDENTITY_TOKEN_FILE"])
        params = {
            "RoleArn": env["AWS_ROLE_ARN"],
            "RoleSessionName": self._session_name,
            "WebIdentityToken": token,
        }
        body = form("AssumeRoleWithWebIdentity", _STS_VERSION, params)
        text = await self._request("POST", self._sts, {"content-type": _FORM}, body)
        return _of_sts(text, "AssumeRoleWithWebIdentityResult")

    def _shared_file(self) -> Credentials | None:
        env = self.environment
        profile = env.get("AWS_PROFILE") or "default"
        home = env.get("HOME")
        path = env.get("AWS_SHARED_CREDENTIALS_FILE") or (f"{home}/.aws/credentials" if home else "")
        parser = configparser.RawConfigParser()
        try:
            if not path or not parser.read(path, encoding="utf-8"):
                self._check_profile(profile, path)
                return None
        except (OSError, UnicodeError, configparser.Error) as problem:
            raise CredentialsError(f"failed to read {path}: {problem}") from problem
        if not parser.has_section(profile):
            self._check_profile(profile, path)
            return None
        section = parser[profile]
        key, secret = section.get("aws_access_key_id", ""), section.get("aws_secret_access_key", "")
        if not key or not secret:
            raise CredentialsError(f"profile {profile} in {path} has no aws_access_key_id and aws_secret_access_key")
        return Credentials(key, secret, section.get("aws_session_token", ""))

    def _check_profile(self, profile: str, path: str) -> None:
        """A profile that was asked for by name must exist."""
        if self.environment.get("AWS_PROFILE"):
            raise CredentialsError(
                f"AWS_PROFILE is {profile}, and {path or 'the credentials file'} has no such profile"
            )

    async def _container(self) -> Credentials:
        env = self.environment
        relative = env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        url = f"{ECS}{relative}" if relative else env["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" and not relative and (parts.hostname or "") not in _LOCAL:
            raise CredentialsError(f"AWS_CONTAINER_CREDENTIALS_FULL_URI names {parts.hostname} without TLS")
        headers = {}
        token = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
        if file := env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
            token = _read_token(file)
        if token:
            headers["authorization"] = token
        return _parsed(_json(await self._request("GET", url, headers)), "the container's endpoint")

    async def _instance(self) -> Credentials:
        where = "the instance metadata service"
        metadata = Metadata(self.session, self.environment)
        try:
            role = (await metadata.get(_ROLES)).partition("\n")[0]
            found = await metadata.get(_ROLES + urllib.parse.quote(role)) if role else ""
        except MetadataError as problem:
            if problem.status == 404:
                raise CredentialsError("no AWS credentials: this instance has no instance profile") from problem
            raise CredentialsError(f"no AWS credentials: {problem}") from problem
        return _parsed(_json(found), where)

    async def _request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> str:
        try:
            return await request(self, method, url, headers, body)
        except MetadataError as problem:
            code, message, _ = parse_error(problem.answer)
            reason = f": {code}: {message}" if code else ""
            raise CredentialsError(f"no AWS credentials: {problem}{reason}") from problem


def _read_token(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as problem:
        raise CredentialsError(f"failed to read the token file {path}: {problem}") from problem


def _of_sts(text: str, result: str) -> Credentials:
    try:
        answer = parse_xml(text.encode()).get(result)
    except ValueError:
        answer = None
    found = answer.get("Credentials") if isinstance(answer, dict) else None
    return _parsed(found if isinstance(found, dict) else {}, "the security token service", token="SessionToken")


def _json(text: str) -> Answer:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _parsed(found: Answer, where: str, *, token: str = "Token") -> Credentials:
    key, secret = found.get("AccessKeyId"), found.get("SecretAccessKey")
    if not isinstance(key, str) or not isinstance(secret, str):
        reason = found.get("Message") or found.get("Code") or "no keys in its answer"
        raise CredentialsError(f"no AWS credentials: {where} says: {reason}")
    expires = found.get("Expiration")
    return Credentials(key, secret, str(found.get(token) or ""), _time(expires) if expires else None)


def _time(text: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(str(text)[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        raise CredentialsError(f"expected a time like 2026-01-02T03:04:05Z, found {text!r}") from None
