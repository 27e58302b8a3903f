"""The identity provider, and what its groups may do: the file of `serve --oidc-config`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nstance.admin import errors
from nstance.admin.http import access
from nstance.model import ids
from nstance.model.ids import DEFAULT_TENANT, TenantId
from nstance.model.roles import Role

MAX_FILE_BYTES = 64 * 1024
CALLBACK = "/v1/login/callback"
DEFAULT_SCOPES = ("openid", "email", "groups")


@dataclass(frozen=True, slots=True)
class Right:
    role: Role
    tenant: TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    issuer: str
    client_id: str
    client_secret: str  # empty: a public client, which PKCE protects
    redirect_url: str
    scopes: tuple[str, ...]
    person_claim: str
    groups_claim: str
    groups: Mapping[str, Right]  # the first of them that a person has counts
    ca_file: Path | None  # for the provider's certificate; None: that of the system

    def __repr__(self) -> str:
        return f"OidcSettings(issuer={self.issuer!r}, client_id={self.client_id!r})"

    def right(self, groups: object) -> Right | None:
        """What a person with these groups may do."""
        found = set(groups) if isinstance(groups, list) and all(isinstance(each, str) for each in groups) else set()
        return next((right for group, right in self.groups.items() if group in found), None)


KNOWN = frozenset(OidcSettings.__dataclass_fields__) - {"client_secret"} | {"client_secret_file"}


def load(path: Path) -> OidcSettings:
    """Raises CommandError."""
    try:
        with path.open("rb") as file:
            raw = json.loads(file.read(MAX_FILE_BYTES + 1))
    except OSError as problem:
        raise errors.CommandError(f"cannot read {path}: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:
        raise errors.CommandError(f"{path}: expected a JSON object: {problem}") from problem
    try:
        return _parse(raw, path.parent)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        reason = f"expected {problem}" if isinstance(problem, KeyError) else str(problem)
        raise errors.CommandError(f"{path}: {reason}") from problem


def _parse(raw: Any, folder: Path) -> OidcSettings:
    if not isinstance(raw, dict):
        raise ValueError("expected a JSON object")
    if unknown := sorted(set(raw) - KNOWN):
        raise ValueError(f"unknown settings {', '.join(unknown)}; there are: {', '.join(sorted(KNOWN))}")
    texts = {name: raw[name] for name in ("issuer", "client_id", "redirect_url")}
    texts |= {"person_claim": raw.get("person_claim", "email"), "groups_claim": raw.get("groups_claim", "groups")}
    for name, text in texts.items():
        if not isinstance(text, str) or not text:
            raise ValueError(f"{name}: expected a text")
    for name in ("issuer", "redirect_url"):
        check_url(texts[name], name)
    if not texts["redirect_url"].endswith(CALLBACK):
        raise ValueError(f"redirect_url: expected the address of this server followed by {CALLBACK}")
    scopes = raw.get("scopes", DEFAULT_SCOPES)
    if "openid" not in scopes or not all(isinstance(scope, str) for scope in scopes):
        raise ValueError("scopes: expected a list with openid")
    secret = raw.get("client_secret_file")
    return OidcSettings(
        **texts,
        client_secret=(folder / secret).read_text(encoding="utf-8").strip() if secret else "",
        scopes=tuple(scopes),
        groups=_rights(raw["groups"]),
        ca_file=folder / raw["ca_file"] if raw.get("ca_file") else None,
    )


def _rights(raw: Any) -> dict[str, Right]:
    if not isinstance(raw, dict) or not raw:
        raise ValueError("groups: expected an object that gives each group a role and a tenant")
    found = {}
    for group, each in raw.items():
        if not isinstance(each, dict) or set(each) - {"role", "tenant"}:
            raise ValueError(f"groups.{group}: expected a role and a tenant")
        try:
            role = Role(each.get("role"))
        except ValueError:
            raise ValueError(f"groups.{group}.role: expected viewer, drainer, operator or admin") from None
        tenant = each.get("tenant", DEFAULT_TENANT)
        if not isinstance(tenant, str) or not ids.is_name(tenant):
            raise ValueError(f"groups.{group}.tenant: expected the name of a tenant")
        found[group] = Right(role, TenantId(tenant))
    return found


def check_url(text: object, name: str) -> None:
    """Without TLS only on this machine. Raises ValueError."""
    parts = urlsplit(text) if isinstance(text, str) else None
    is_safe = parts is not None and (
        parts.scheme == "https" or (parts.scheme == "http" and access.is_loopback(parts.hostname or ""))
    )
    if parts is None or not is_safe or not parts.hostname or parts.fragment or parts.username:
        raise ValueError(f"{name}: expected an https address, found {str(text)[:200]!r}")
