"""From what Google says to what follows from it."""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from nstance.gcp.errors import GoogleError
from nstance.providers import cloud_answers, errors
from nstance.providers.errors import CapacityScope

PERMISSIONS = "docs/gcp.md#permissions"
THROTTLED_SECONDS = 1.0  # Google does not say how long
CREATE = "compute.instances.create"

# Errors of an insert that mean: not with this offer, try another one.
NO_CAPACITY = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": CapacityScope.OFFER,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": CapacityScope.OFFER,
    "RESOURCE_POOL_EXHAUSTED": CapacityScope.OFFER,
    "IP_SPACE_EXHAUSTED": CapacityScope.SUBNET,
    "IP_SPACE_EXHAUSTED_WITH_DETAILS": CapacityScope.SUBNET,
    "QUOTA_EXCEEDED": CapacityScope.TYPE_QUOTA,  # of a metric such as N2_CPUS or PREEMPTIBLE_CPUS
    "quotaExceeded": CapacityScope.TYPE_QUOTA,
}
EXISTS = frozenset({"RESOURCE_ALREADY_EXISTS", "alreadyExists", "ALREADY_EXISTS"})
_TRANSIENT = frozenset(
    {"INTERNAL_ERROR", "RESOURCE_NOT_READY", "SERVICE_UNAVAILABLE", "UNAVAILABLE", "BACKEND_ERROR", "OPERATION_TIMEOUT"}
)
_FIELD = re.compile(r"field 'resource\.([A-Za-z0-9_.\[\]]+)'")
_MISSING = re.compile(r"/(subnetworks|images|diskTypes|serviceAccounts)/\S*' .*not found", re.DOTALL)
_PATHS = {
    "machineType": "instance_type",
    "networkInterfaces[0].subnetwork": "subnet_pools",
    "disks[0].initializeParams.sourceImage": "args.SourceImage",
    "serviceAccounts[0].email": "args.ServiceAccount",
    # Kinds of resources, of a message that one is missing:
    "subnetworks": "subnet_pools",
    "images": "args.SourceImage",
    "diskTypes": "args.DiskType",
    "serviceAccounts": "args.ServiceAccount",
}
_NOT_LENT = "SERVICE_ACCOUNT_ACCESS_DENIED"  # the VM's service account may not be given by the server's


def translated(permission: str, *, changes: bool) -> AbstractContextManager[None]:
    """`changes`: a call without a reply may have changed something. `permission`: what it needs."""
    return cloud_answers.translated(
        GoogleError, lambda problem: from_google(problem, permission, changes=changes), changes=changes
    )


def from_google(problem: GoogleError, permission: str, *, changes: bool) -> errors.ProviderError:
    if problem.is_throttled:
        return errors.ThrottledError(str(problem), delay=THROTTLED_SECONDS)
    if permission == CREATE and (scope := _capacity(problem)) is not None:
        return errors.NoCapacityError(str(problem), scope=scope)
    if problem.is_expired:
        return errors.OutOfReachError(f"Google does not accept the token, another one is fetched: {problem}")
    if problem.is_denied:
        return _denied(permission, problem)
    if problem.is_server_fault:
        return errors.UnknownOutcomeError(str(problem)) if changes else errors.UnavailableError(str(problem))
    if problem.status == 404:
        return errors.NotFoundError(str(problem))
    if problem.reason == _NOT_LENT:
        return _denied("iam.serviceAccounts.actAs", problem)
    path = find_parameter(problem.message)
    return errors.PermanentError(f"{path}: {problem}" if path else str(problem), parameter=path)


def of_operation(operation: Mapping[str, Any], permission: str) -> errors.ProviderError | None:
    """What a finished operation failed with; None: it succeeded. Its reply was a 200 either way."""
    found = operation.get("error")
    listed = found.get("errors") if isinstance(found, dict) else None
    if not listed:
        status = operation.get("httpErrorStatusCode")
        if not isinstance(status, int) or status < 400:
            return None
        listed = [{"code": "", "message": str(operation.get("httpErrorMessage") or status)}]
    codes = [str(each.get("code") or "") for each in listed]
    text = "; ".join(f"{each.get('code')}: {str(each.get('message') or '')[:400]}" for each in listed)
    if permission == CREATE:
        scopes = [NO_CAPACITY[code] for code in codes if code in NO_CAPACITY]
        if scopes:
            return errors.NoCapacityError(text, scope=scopes[0])
    if any(code in _TRANSIENT for code in codes):
        return errors.UnavailableError(text)
    if "RATE_LIMIT_EXCEEDED" in codes:
        return errors.ThrottledError(text, delay=THROTTLED_SECONDS)
    if _NOT_LENT in codes:
        return _denied("iam.serviceAccounts.actAs", text)
    if "PERMISSIONS_ERROR" in codes:
        return _denied(permission, text)
    path = find_parameter(text)
    problem = errors.PermanentError(f"{path}: {text}" if path else text, parameter=path)
    problem.__cause__ = GoogleError(0, codes[0], text)
    return problem


def reason_of(problem: BaseException) -> str:
    """Google's own word for what a translated error was."""
    return problem.__cause__.reason if isinstance(problem.__cause__, GoogleError) else ""


def status_of(problem: BaseException) -> int:
    """The status of the reply behind a translated error."""
    return problem.__cause__.status if isinstance(problem.__cause__, GoogleError) else 0


def _capacity(problem: GoogleError) -> CapacityScope | None:
    if problem.reason in NO_CAPACITY:
        return NO_CAPACITY[problem.reason]
    if problem.status in (400, 404) and "machinetype" in problem.message.lower().replace(" ", ""):
        # This type does not exist in this zone, which is the zone of all subnets.
        return CapacityScope.INSTANCE_TYPE if "does not exist" in problem.message else None
    return None


def _denied(permission: str, problem: object) -> errors.PermanentError:
    return errors.PermanentError(
        f"Google denied {permission}: allow it to the server's service account, see {PERMISSIONS}: {problem}",
        permission=permission,
    )


def find_parameter(message: str) -> str:
    """Where the configuration says what Google objects to."""
    if (found := _FIELD.search(message) or _MISSING.search(message)) is None:
        return ""
    field = found[1]
    return _PATHS.get(field) or "args." + ".".join(part[:1].upper() + part[1:] for part in field.split("."))
