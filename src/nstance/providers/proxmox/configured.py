"""Access and settings from the options of the configuration and the environment.

The secret of the token is in the environment, or in the secret store of the cluster; never in the configuration.
"""

import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urlsplit

from nstance.providers import errors
from nstance.providers.options import Options
from nstance.providers.proxmox.client import Access
from nstance.providers.proxmox.placement import Limits
from nstance.providers.proxmox.settings import ProxmoxSettings

_VMIDS = re.compile(r"(\d{3,9})-(\d{3,9})")
_FINGERPRINT = re.compile(r"[0-9a-fA-F]{2}(:?[0-9a-fA-F]{2}){31}")
_MIN_VMIDS = 100


ReadSecret = Callable[[str], Awaitable[bytes]]


def read(
    options: Options, environment: Mapping[str, str], read_secret: ReadSecret | None = None
) -> tuple[Access, ProxmoxSettings]:
    """Raises PermanentError."""
    defaults = ProxmoxSettings()
    url = _url(options.text("api_url") or environment.get("PROXMOX_API_URL", ""))
    token_id, secret = options.text("token_id"), options.text("token_secret_name")
    if secret and read_secret is None:
        raise errors.PermanentError(
            "option 'token_secret_name' of provider 'proxmox': expected a secret store, found none: set PROXMOX_TOKEN_SECRET"
        )
    access = Access(
        url=url,
        token_id=token_id or _variable(environment, "PROXMOX_TOKEN_ID"),
        token_secret="" if secret else _variable(environment, "PROXMOX_TOKEN_SECRET"),
        read_token=functools.partial(read_secret, secret) if secret and read_secret is not None else None,
        ca_file=options.path("ca_file"),
        fingerprint=_fingerprint(options.text("fingerprint") or ""),
        verify_tls=options.flag("verify_tls", default=True),
    )
    if access.ca_file is not None and not access.ca_file.is_file():
        raise errors.PermanentError(
            f"option 'ca_file' of provider 'proxmox': expected a file, found none at {access.ca_file}"
        )
    settings = ProxmoxSettings(
        iso_storage=options.text("iso_storage") or defaults.iso_storage,
        vmids=_vmids(options.text("vmids") or ""),
        bridge=options.text("bridge") or "",
        pool=options.text("pool") or "",
        limits=Limits(
            nodes=tuple(options.texts("nodes") or ()),
            memory_overcommit=options.ratio("memory_overcommit", default=defaults.limits.memory_overcommit),
            reserve_memory_mib=options.count("reserve_memory_mib", default=defaults.limits.reserve_memory_mib),
        ),
    )
    return access, settings


def _url(text: str) -> str:
    if not text:
        raise errors.PermanentError(
            "expected the address of Proxmox in option 'api_url' or PROXMOX_API_URL, found none, for example "
            "https://pve1.internal:8006"
        )
    parts = urlsplit(text)
    if parts.scheme not in ("https", "http") or not parts.netloc or parts.username:
        raise errors.PermanentError(
            f"option 'api_url' of provider 'proxmox': expected https://HOST:8006, found {text!r}"
        )
    return text.rstrip("/").removesuffix("/api2/json")


def _variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise errors.PermanentError(
            f"expected {name} in the environment of the server, found none: see docs/proxmox.md"
        )
    return value


def _fingerprint(text: str) -> bytes:
    if not text:
        return b""
    if not _FINGERPRINT.fullmatch(text):
        raise errors.PermanentError(
            "option 'fingerprint' of provider 'proxmox': expected the SHA-256 of the certificate in hexadecimal"
        )
    return bytes.fromhex(text.replace(":", ""))


def _vmids(text: str) -> range:
    if not text:
        return ProxmoxSettings().vmids
    match = _VMIDS.fullmatch(text)
    found = range(int(match[1]), int(match[2]) + 1) if match else range(0)
    if found.start < 100 or len(found) < _MIN_VMIDS:
        raise errors.PermanentError(
            f"option 'vmids' of provider 'proxmox': expected a range of at least {_MIN_VMIDS} such as \"100000-199999\", "
            f"found {text!r}"
        )
    return found
