"""From what Proxmox says to what follows from it.

The trap: almost everything is a 500 with a text, also "there is no such VM". The texts here are those of PVE 8 and 9.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager

from nstance.providers import cloud_answers, errors
from nstance.providers.errors import CapacityScope

PERMISSIONS = "docs/proxmox.md#permissions"
_ABSENT = re.compile(r"Configuration file '.*' does not exist|^VM \d+ (not found|does not exist)", re.IGNORECASE)
_TAKEN = re.compile(r"config file already exists|(VM|CT) \d+ already exists", re.IGNORECASE)
_NO_STORAGE = re.compile(r"storage '[^']*' (does not exist|is not available on node)", re.IGNORECASE)
_BUSY = (
    "no quorum",
    "is locked",
    "can't lock file",
    "got timeout",
    "cfs-lock",
    "still running",
    "is running - destroy",
)
_FULL = ("no space left", "not enough free space", "out of space", "insufficient free space", "cannot allocate memory")
_NEVER = ("protection mode enabled", "does not support", "not supported", "no such", "not allowed", "parameter")
# Where the configuration says what Proxmox objects to, by its own name of a parameter.
_ARGUMENTS = {
    "cores": "instance_type",
    "cpu": "CpuType",
    "disk": "DiskDevice",
    "memory": "instance_type",
    "net0": "Bridge",
    "pool": "Pool",
    "size": "instance_type",
    "storage": "StoragePool",
    "tags": "ExtraTags",
}
_NOT_REACHED = 595  # the node that was asked could not connect to the one that has the VM
_DENIED = re.compile(r"\(([^,()]+), ([\w.|]+)\)")


class PveError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, parameters: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.parameters = dict(parameters or {})
        details = "; ".join(f"{name}: {text}" for name, text in self.parameters.items())
        super().__init__(f"{message} ({details})" if details else message)


class NoStorageError(errors.PermanentError):
    """The node has no such storage."""


class TakenError(errors.UnavailableError):
    """The VMID is in use."""


def translated(permission: str, *, changes: bool) -> AbstractContextManager[None]:
    return cloud_answers.translated(
        PveError, lambda problem: from_pve(problem, permission, changes=changes), changes=changes
    )


def from_pve(problem: PveError, permission: str, *, changes: bool) -> errors.ProviderError:
    text = f"Proxmox: {problem}"
    low = text.lower()
    if problem.status == 401:
        return errors.PermanentError(
            f"{text}; check PROXMOX_TOKEN_ID and PROXMOX_TOKEN_SECRET", permission="a valid API token"
        )
    if problem.status == 403:
        found = _DENIED.search(str(problem))
        missing = f"{found[2]} on {found[1]}" if found else permission
        return errors.PermanentError(f"{text}; the token needs {missing}, see {PERMISSIONS}", permission=missing)
    if problem.status == 400:
        name = next(iter(problem.parameters), "")
        return errors.PermanentError(text, parameter=_ARGUMENTS.get(name, name))
    if problem.status == 429:
        return errors.ThrottledError(text)
    if problem.status == _NOT_REACHED:
        return errors.UnavailableError(f"{text}: the node is offline")
    if _ABSENT.search(str(problem)):
        return errors.NotFoundError(text)
    if _NO_STORAGE.search(str(problem)):
        return NoStorageError(text, parameter="iso_storage")
    if _TAKEN.search(str(problem)):
        return TakenError(text)
    if any(each in low for each in _FULL):
        return errors.NoCapacityError(text, scope=CapacityScope.HOST, subject="storage or memory of the node")
    if any(each in low for each in _BUSY):
        return errors.UnavailableError(text)
    if any(each in low for each in _NEVER):
        return errors.PermanentError(text)
    return errors.UnknownOutcomeError(text) if changes else errors.UnavailableError(text)
