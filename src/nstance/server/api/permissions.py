"""Which role each call of the operator API requires, and whose tenant it is about.

The table is complete: a call without a row is rejected, and a test compares it with the proto. The trap is `Watch`: it
reads, but with `drains` it makes deletions wait, so that needs a role of its own.
"""

from collections.abc import Mapping
from typing import Any

from nstance.config.model.settings import Settings
from nstance.model.ids import DEFAULT_TENANT, TenantId
from nstance.model.roles import Role, lowest
from nstance.pki import names
from nstance.wire import status
from nstance.wire.call import ROLE_HEADER, TENANT_HEADER

REQUIRED: Mapping[str, Role] = {
    "GetConfigStatus": Role.VIEWER,
    "RefreshConfig": Role.OPERATOR,
    "ListGroups": Role.VIEWER,
    "UpsertGroup": Role.OPERATOR,
    "DeleteGroup": Role.OPERATOR,
    "PlanGroup": Role.VIEWER,
    "PauseGroup": Role.OPERATOR,
    "ResumeGroup": Role.OPERATOR,
    "ListInstances": Role.VIEWER,
    "CreateInstance": Role.OPERATOR,
    "DeleteInstance": Role.OPERATOR,
    "GetInstanceStatus": Role.VIEWER,
    "ReplaceInstance": Role.OPERATOR,
    "RollbackGroup": Role.OPERATOR,
    "ResumeRollout": Role.OPERATOR,
    "ListRevisions": Role.VIEWER,
    "ListUnknownVms": Role.VIEWER,
    "AdoptInstance": Role.OPERATOR,
    "ReleaseInstance": Role.OPERATOR,
    "AcknowledgeDrained": Role.DRAINER,
    "Watch": Role.VIEWER,
    "ListEvents": Role.VIEWER,
    "GetControlPlane": Role.VIEWER,
    "RevokeOperator": Role.ADMIN,
    "RenewCertificate": Role.VIEWER,  # its own, with the same role
}


def required_role(rpc: str, request: Any) -> Role:
    """A dry run is a plan, which every role may see. Raises PERMISSION_DENIED for a call without a row."""
    role = REQUIRED.get(rpc)
    if role is None:
        raise status.denied(f"no role may call {rpc}")
    if rpc == "Watch" and request.drains:
        return Role.DRAINER
    return Role.VIEWER if getattr(request, "dry_run", False) else role


def check(role: Role, rpc: str, request: Any) -> None:
    """Raises PERMISSION_DENIED."""
    required = required_role(rpc, request)
    if not role.allows(required):
        raise status.denied(f"{rpc} requires the role {required.value}, this operator has the role {role.value}")


def effective_role(own: Role, metadata: Mapping[str, Any]) -> Role:
    """The operator's role, or that of the person it asks for if it is lower."""
    named = metadata.get(ROLE_HEADER)
    if named is None:
        return own
    try:
        return lowest(own, Role(named))
    except ValueError:
        raise status.invalid(ROLE_HEADER, "expected the name of a role") from None


def tenant(who: names.Operator, metadata: Mapping[str, Any], settings: Settings) -> TenantId:
    """The operator's own, or the one that an admin asks for, whatever the role of the person behind it."""
    named = metadata.get(TENANT_HEADER, who.tenant)
    if named == who.tenant:
        return who.tenant
    if not who.role.allows(Role.ADMIN):
        raise status.denied(f"only the role {Role.ADMIN.value} may act in another tenant")
    if named != DEFAULT_TENANT and named not in settings.tenants:
        raise status.not_found("there is no such tenant")
    return TenantId(named)
